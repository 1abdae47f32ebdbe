"""Models pushed to a Hub on this machine, with their cards, and what other libraries make of them."""

import json
import re
import subprocess
import sys

import commands
import fork_server
import numpy as np
import pytest
import yaml
from hub_emulator import TOKEN, running
from released_files import logits, path, read, write_folder

from vit_jax.adapters.lora import AdapterConfig
from vit_jax.config import (
  ClassificationEvaluatorConfig,
  Config,
  DataConfig,
  FewShotEvaluatorConfig,
  InitConfig,
)
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.hub import Address
from vit_jax.pretrained import bucket_output, hub_files, peft_export
from vit_jax.pretrained.base import Adapted
from vit_jax.pretrained.runs import Trained
from vit_jax.push import model_card
from vit_jax.training import loop

# Prints the logits of two images, by the library that the card of a model names.
PEERS = {
  'vit': """
from transformers import AutoModelForImageClassification
model = AutoModelForImageClassification.from_pretrained('me/model', revision='v1')
""",
  'timm': """
import timm
model = timm.create_model('hf-hub:me/model@v1', pretrained=True).eval()
""",
}
LOGITS = """
images = torch.from_numpy(numpy.load('images.npy').transpose(0, 3, 1, 2))
with torch.no_grad():
  found = model(images)
numpy.save('logits.npy', getattr(found, 'logits', found).numpy())
"""


@pytest.fixture
def hub(tmp_path, monkeypatch):
  with running(tmp_path / 'cache') as hub:
    monkeypatch.setenv('HF_TOKEN', TOKEN)
    yield hub


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """The folder of a run, `run`, that has ended."""
  folder = tmp_path_factory.mktemp('run')
  commands.assert_done(commands.run(folder, '--config.ema=0.9', '--config.tensorboard.pictures=True'))
  return folder


def push(cwd, *arguments):
  return fork_server.run('vit_jax.push', *arguments, cwd=cwd)


def header(card):
  """The YAML that a card begins with."""
  return yaml.safe_load(card.split('---\n')[1])


def test_a_run_is_pushed_with_what_it_holds(run, hub):
  result = push(run, 'run', 'hf:me/digits@v1', '--license=apache-2.0', '--private', '--weights=ema')
  assert result.returncode == 0, result.stderr
  assert result.stdout.startswith('Pushed hf:me/digits@v1 (')
  repository = hub.repositories['models/me/digits']
  assert repository.access == 'private' and list(repository.branches) == ['main', 'v1']
  files = repository.commits[repository.branches['v1']]
  assert files.keys() > {'README.md', 'config.json', 'model.safetensors', 'model.safetensors.sha256'}
  assert files['curves.png'] == (run / 'run/report/curves.png').read_bytes()
  card = files['README.md'].decode()
  assert set(hub.cards) == {card}  # it was checked before it was uploaded
  assert header(card) == {
    'license': 'apache-2.0',
    'library_name': 'transformers',
    'pipeline_tag': 'image-classification',
    'tags': ['vit_jax', 'image-classification'],
  }
  for line in (
    "model = vit_jax.load('hf:me/digits@v1')",
    '![',
    'After step 4:',
    'digits train, 1,437 images.',
  ):
    assert line in card
  last = json.loads((run / 'run/metrics.jsonl').read_text().splitlines()[-1])
  rows = {tuple(cell.strip() for cell in line.split('|')[1:-1]) for line in card.splitlines() if '|' in line}
  assert ('accuracy', f'{last["test_ema/accuracy"]:.2%}', '360', 'digits test') in rows
  assert {('batch_size', '16'), ('ema', '0.9'), ('optimizer.name', 'adam')} < rows


@pytest.mark.nightly
def test_a_folder_gets_the_same_files_again_and_again(run, hub, tmp_path):
  for name in ('hf:me/digits', str(tmp_path / 'seen'), str(tmp_path / 'seen')):
    assert push(run, 'run', name).returncode == 0
  repository = hub.repositories['models/me/digits']
  files = repository.commits[repository.branches['main']]
  seen = {file.name: file.read_bytes() for file in (tmp_path / 'seen').iterdir()}
  assert files.keys() - seen.keys() == {'.gitattributes'}
  assert all(seen[name] == files[name] for name in seen if name != 'README.md')
  (tmp_path / 'seen/notes.txt').touch()
  commands.assert_said(
    push(run, 'run', str(tmp_path / 'seen')), 'seen holds notes.txt, which is not of this push'
  )


def test_what_is_not_known_is_not_in_the_card(golden, hub, tmp_path):
  assert push(tmp_path, str(path(golden, 'b_vit_gap')), 'hf:me/model', '--format=timm').returncode == 0
  (card,) = set(hub.cards)
  assert header(card).keys() == {'library_name', 'pipeline_tag', 'tags'}
  assert "timm.create_model('hf-hub:me/model', pretrained=True)" in card
  assert [line for line in card.splitlines() if line.startswith('#')] == ['# model', '## How to load it']


def test_where_model_and_data_are_from_is_named_and_no_path_of_this_machine(golden, tmp_path):
  pretrained, data = read(path(golden, 'a_vit_token')), tmp_path / 'data/pets/1.0.0'
  write_folder(pretrained, tmp_path / 'model')
  data.mkdir(parents=True)
  (data / 'metadata.json').write_text('{"source": "hf://datasets/me/pets@v1/data"}')
  config = Config(
    data=DataConfig(source=f'tfds:{data}:train[:90%]'),
    init=InitConfig(checkpoint='hf-hub:me/base@v2:a.npz'),
    evaluators={
      'val': ClassificationEvaluatorConfig(source='folder:/home/me/others', split='val'),
      'few': FewShotEvaluatorConfig(shots=(5,)),
    },
  )
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run/metrics.jsonl').write_text(
    '{"step": 7, "val/accuracy": 0.25, "few_5shot/accuracy": 0.5}\n'
  )
  trained, address = Trained(config, 7, 900, 'raw', {}), Address('me/model')
  model_card.write(
    tmp_path / 'model', pretrained, str(tmp_path / 'run/checkpoints/7'), trained, address, None
  )
  card = (tmp_path / 'model/README.md').read_text()
  assert header(card) == {
    'library_name': 'transformers',
    'pipeline_tag': 'image-classification',
    'tags': ['vit_jax', 'image-classification'],
    'base_model': 'me/base',
    'datasets': ['me/pets'],
  }
  assert 'tfds:pets train[:90%], 900 images. Training began from me/base.' in card
  assert re.search(r'accuracy +\| 25.00% +\| +\| folder:others val', card)  # nobody knows of how many images
  assert re.search(r'5shot/accuracy +\| 50.00% ', card)
  assert str(tmp_path) not in card and '/home' not in card


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (['hf:me/there', '--private'], 'me/there is there already, and public; '),
    (['hf:me/model:file'], 'hf:me/model:file is neither a repository nor a folder; '),
    (['gs://bucket/model'], 'gs://bucket/model is neither a repository nor a folder; '),
    (['hf:me/model', '--format=npz'], "--format is 'npz'; choose one of hf, peft, vit, "),
    (['hf:model'], "'hf:model' names no repository of the Hub"),
  ],
)
def test_what_cannot_be_pushed_is_said_in_one_sentence(arguments, said, golden, hub, tmp_path):
  hub.add('models/me/there', {})
  commands.assert_said(push(tmp_path, str(path(golden, 'a_vit_token')), *arguments), said)


def test_without_a_token_nothing_is_pushed(golden, hub, tmp_path, monkeypatch):
  monkeypatch.delenv('HF_TOKEN')
  result = push(tmp_path, str(path(golden, 'a_vit_token')), 'hf:me/model')
  commands.assert_said(result, 'The Hub does not allow that for me/model', 'log in by `hf auth login`')


def test_convert_says_how_to_write_to_the_hub():
  said = r'write it by vit_jax push SRC hf:me/model\.'
  with pytest.raises(UserError, match=said), bucket_output.place_to_write('hf:me/model'):
    pass


@pytest.mark.nightly(but='vit')
@pytest.mark.slow
@pytest.mark.parametrize('kind', PEERS)
def test_what_was_pushed_gives_the_same_logits_elsewhere(kind, golden, hub, tmp_path):
  pytest.importorskip({'vit': 'transformers', 'timm': 'timm'}[kind])
  source = str(path(golden, 'a_vit_token'))
  assert push(tmp_path, source, 'hf:me/model@v1', f'--format={kind}', '--private').returncode == 0
  size = read(source).architecture.image_size
  images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype(np.float32)
  np.save(tmp_path / 'images.npy', images)
  script = f'import numpy, torch\n{PEERS[kind]}{LOGITS}'
  subprocess.run([sys.executable, '-c', script], cwd=tmp_path, check=True)
  wanted = logits(source, images)
  np.testing.assert_allclose(np.load(tmp_path / 'logits.npy'), wanted, atol=1e-5)
  np.testing.assert_array_equal(logits('hf:me/model@v1', images), wanted)


def test_what_is_pushed_replaces_a_model_or_adapter_that_was_there_and_no_other_file(hub, tmp_path):
  adapter, whole = ['adapter_config.json', 'adapter_model.safetensors'], ['config.json', 'model.safetensors']
  shards = ['model-00001-of-00002.safetensors', 'model.safetensors.index.json']
  for name, new, before in (
    ('whole', whole, [*adapter, *shards, 'processor_config.json']),
    ('adapter', adapter, [*whole, *shards]),
  ):
    before += [f'{before[1]}.sha256']
    folder = tmp_path / name
    folder.mkdir()
    for file in new:
      (folder / file).write_text('new')
    repository = hub.add(f'models/me/{name}', dict.fromkeys([*before, 'notes.txt'], b'old'))
    hub_files.upload(folder, Address(f'me/{name}', None), private=False, message=None)
    files = repository.commits[repository.branches['main']]
    assert files == dict.fromkeys(new, b'new') | {'notes.txt': b'old'}


@pytest.mark.nightly
def test_an_adapter_is_pushed_alone_and_its_card_loads_it_with_its_base(golden, hub, tmp_path):
  pytest.importorskip('peft', reason="needs the extra 'peers'", exc_type=ImportError)
  base = read(path(golden, 'a_vit_token'))
  write_folder(base, tmp_path / 'base', 'vit')
  hub.add('models/me/base', tmp_path / 'base')
  size, channels = base.architecture.image_size, base.architecture.channels
  config = Config(
    total='2 steps',
    batch_size=8,
    model=base.architecture.model,
    data=DataConfig(source='digits:train[:50%]', image_size=size, channels=channels),
    init=InitConfig(checkpoint='hf:me/base@main'),
    adapter=AdapterConfig(rank=2),
    evaluators={'test': ClassificationEvaluatorConfig()},
  )
  loop.train(config, tmp_path / 'run')
  result = push(tmp_path, 'run', 'hf:me/adapter')
  assert result.returncode == 0, result.stderr
  repository = hub.repositories['models/me/adapter']
  files = repository.commits[repository.branches['main']]
  assert files.keys() >= {'README.md', 'adapter_config.json', 'adapter_model.safetensors'}
  assert 'model.safetensors' not in files and str(tmp_path).encode() not in b''.join(files.values())
  card = files['README.md'].decode()
  assert header(card)['base_model'] == 'me/base' and header(card)['library_name'] == 'peft'
  assert 'LoRA adapters of rank 2 (alpha 16) of the kernels that match `' in card
  assert re.search(r'accuracy .*\| 360 +\| digits test', card)
  images = np.random.default_rng(0).normal(size=(2, *size, channels)).astype(np.float32)
  np.save(tmp_path / 'images.npy', images)
  code = card.split('```python\n')[2].split('```')[0]
  subprocess.run([sys.executable, '-c', f'import numpy, torch\n{code}{LOGITS}'], cwd=tmp_path, check=True)
  wanted = logits(tmp_path / 'run', images)
  np.testing.assert_allclose(np.load(tmp_path / 'logits.npy'), wanted, atol=1e-5)
  np.testing.assert_allclose(logits('hf:me/adapter', images), wanted, atol=1e-6)


def test_an_adapter_whose_base_nobody_else_has_is_not_pushed_alone():
  def on_hub(base):
    return peft_export.on_hub(Adapted(AdapterConfig(rank=2), {}, base))

  assert on_hub('hf:me/base@v1') == Address('me/base', 'v1')
  assert [on_hub('me/base'), on_hub('vit_a.b')] == [Address('me/base'), Address('timm/vit_a.b')]
  elsewhere = ('/home/me/base', 'imagenet21k/ViT-B_16', 'hf:me/base:a.npz', 'https://here/a.npz')
  assert not any(map(on_hub, elsewhere))
