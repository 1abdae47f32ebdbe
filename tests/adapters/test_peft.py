"""PEFT's folders, against PEFT itself."""

import dataclasses
import functools
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'pretrained'))
import transformers_peers as peers

import vit_jax
from vit_jax.adapters import lora
from vit_jax.adapters.lora import AdapterConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import Adapted, Pretrained
from vit_jax.pretrained.peft import PeftFormat, applied

REASON = "needs the extra 'peers' (pip install -e '.[peers]')"
torch = peers.torch
peft = pytest.importorskip('peft', reason=REASON)

pytestmark = pytest.mark.slow  # it compares with another framework

ATTENTION = ['q_proj', 'v_proj', 'attention.o_proj', 'mlp.fc1']
# Theirs: the base, and options of LoraConfig.
THEIRS = {
  'lora': ('vit', {'target_modules': ATTENTION, 'lora_alpha': 12}),
  'dora': ('vit', {'target_modules': ATTENTION, 'use_dora': True, 'modules_to_save': ['classifier']}),
  'dinov2': ('registers', {'target_modules': ['q_proj', 'mlp.fc2'], 'use_rslora': True}),
  'patterns': (
    'deit',
    {'target_modules': ATTENTION, 'rank_pattern': {'mlp.fc1': 2}, 'alpha_pattern': {'v_proj': 3}},
  ),
  'pattern of a block': (
    'registers',
    {'target_modules': ['q_proj'], 'alpha_pattern': {'encoder.layer.0.attention.q_proj': 30}},
  ),
  'convolution': ('vit', {'target_modules': ['projection'], 'use_dora': True}),
  'no head': ('vit model', {'target_modules': ATTENTION}),
  'fused': ('timm', {'target_modules': ['attn.qkv', 'fc2'], 'modules_to_save': ['head']}),
  'fused dora': ('timm', {'target_modules': ['attn.qkv', 'patch_embed.proj'], 'use_dora': True}),
}


def make_base(name: str, folder: pathlib.Path):
  if name.startswith('timm'):
    timm = pytest.importorskip('timm', reason='needs timm, which needs torchvision', exc_type=ImportError)
    hub = pytest.importorskip('timm.models._hub')
    sizes = {'embed_dim': 32, 'depth': 2, 'num_heads': 4, 'patch_size': 8, 'img_size': 16, 'num_classes': 5}
    architecture = name.partition(' ')[2] or 'vit_base_patch16_224'
    model = peers.randomise(timm.create_model(architecture, **sizes), 0)
    hub.save_for_hf(model, folder, safe_serialization=True)
  else:
    model = peers.make_peer(name, image_size=16)
    model.save_pretrained(folder)
  return model


def logits(peer, images: np.ndarray) -> np.ndarray:
  with torch.no_grad():
    out = peer.eval()(peers.to_torch(images))
  return np.asarray(out if torch.is_tensor(out) else out.logits if 'logits' in out else out.last_hidden_state)


@pytest.mark.parametrize('name', THEIRS)
def test_their_adapter_gives_their_logits(name, tmp_path):
  base, options = THEIRS[name]
  model = peft.get_peft_model(make_base(base, tmp_path / 'base'), peft.LoraConfig(r=4, **options))
  peers.randomise(model, 1)  # the frozen base too, whose own values are put back
  with torch.no_grad():
    for key, value in make_base(base, tmp_path / 'again').state_dict().items():
      found = dict(model.base_model.model.named_parameters())
      for wrapped in (
        key,
        *(f'{key.rpartition(".")[0]}.{w}.{key.rpartition(".")[2]}' for w in ('base_layer',)),
      ):
        if wrapped in found:
          found[wrapped].copy_(value)
    for key, value in model.named_parameters():
      if 'magnitude' in key:
        value.copy_(1 + 0.1 * value)
  model.save_pretrained(tmp_path / 'adapter')
  images = peers.images_of((16, 16))
  ours = vit_jax.load(tmp_path / 'base', adapter=tmp_path / 'adapter')
  mine = ours.features(images) if name == 'no head' else ours(images)
  np.testing.assert_allclose(mine, logits(model, images), atol=1e-5, rtol=1e-5)
  plain = vit_jax.load(tmp_path / 'base')
  assert np.abs(mine - (plain.features(images) if name == 'no head' else plain(images))).max() > 1e-2


# Modules of transformers 4, whose names an adapter of then has.
OLD = {'.vit.layers.': '.vit.encoder.layer.', 'attention.q_proj': 'attention.attention.query'}


@pytest.mark.parametrize('pattern', ['attention.query', '.*\\.query', 'query|key', r'layer\.\d+\.\S+\.query'])
def test_alpha_of_a_pattern_is_that_of_the_modules_as_the_file_calls_them(pattern, tmp_path):
  options = peft.LoraConfig(r=4, target_modules=['q_proj'], alpha_pattern={'q_proj': 40})
  model = peft.get_peft_model(make_base('vit', tmp_path / 'base'), options)
  generator = torch.manual_seed(0)
  with torch.no_grad():
    for name, value in model.named_parameters():
      if 'lora_' in name:
        value.copy_(0.3 * torch.randn(value.shape, generator=generator))
  model.save_pretrained(tmp_path / 'adapter')
  file, config = (
    tmp_path / 'adapter' / name for name in ('adapter_model.safetensors', 'adapter_config.json')
  )
  tensors = {
    functools.reduce(lambda n, o: n.replace(o, OLD[o]), OLD, name): array
    for name, array in load_file(file).items()
  }
  save_file(tensors, file)
  config.write_text(json.dumps(json.loads(config.read_text()) | {'alpha_pattern': {pattern: 40}}))
  images = peers.images_of((16, 16))
  ours = vit_jax.load(tmp_path / 'base', adapter=tmp_path / 'adapter')
  np.testing.assert_allclose(ours(images), logits(model, images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(('classes', 'of_base'), [(1, 2), (3, 2), (2, 2), (2, 1)])
def test_head_of_an_adapter_has_the_link_of_its_classes_and_says_whose_names_it_has(
  classes, of_base, tmp_path
):
  """PEFT keeps no names; transformers has a sigmoid where there is one output."""
  names = ('ant', 'bee')[:of_base]
  peer = peers.make_peer('vit', image_size=16, num_labels=of_base, id2label=dict(enumerate(names)))
  peer.save_pretrained(tmp_path / 'base')
  peer = type(peer).from_pretrained(tmp_path / 'base', num_labels=classes, ignore_mismatched_sizes=True)
  model = peft.get_peft_model(
    peer, peft.LoraConfig(target_modules=['q_proj'], modules_to_save=['classifier'])
  )
  model.save_pretrained(tmp_path / 'adapter')
  base = formats.read(tmp_path / 'base')
  assert base.class_names == names
  ours = applied(base, tmp_path / 'adapter')
  assert ours.link == ('sigmoid' if classes == 1 else 'softmax')
  assert ours.class_names == (names if classes == of_base else None)
  assert any('those of the base' in note for note in ours.notes) == (classes == of_base)


OURS = {
  'lora': ('vit', {'targets': 'attention/.*kernel'}),
  'dora': ('registers', {'targets': 'attention/(query|out)/kernel|mlp/.*kernel', 'dora': True}),
  'fused': ('timm', {'targets': 'attention/(query|value)/kernel|dense_in/kernel'}),
  'fused dora': ('timm', {'targets': 'attention/(query|value)/kernel|patch_embedding', 'dora': True}),
  'turned': ('timm vit_base_patch16_rope_224', {'targets': 'attention/(query|value)/kernel'}),
  'turned dora': (
    'timm vit_base_patch16_rope_224',
    {'targets': 'attention/(key|value)/kernel', 'dora': True},
  ),
  'apart': ('timm eva02_base_patch14_224', {'targets': 'attention/(query|value)/kernel'}),
  'past the module': ('timm beit_base_patch16_224', {'targets': 'attention/(query|value)/kernel'}),
  # PEFT takes 'norm' for the end of any name, here of in_norm too.
  'packed': (
    'timm vit_base_patch16_xp_224',
    {'targets': 'attention/(query|value)/kernel', 'trained': ('^head/',)},
  ),
}


def with_adapter(base: pathlib.Path, **options) -> Pretrained:
  """The model of a folder with random adapters of ours."""
  read = formats.read(base)
  adapter = AdapterConfig(**{'rank': 3, 'alpha': 5.0, 'trained': ('^head/', '^norm/')} | options)
  rng = np.random.default_rng(0)
  kernels = lora.targets(read.architecture.abstract(), adapter)
  params = pytrees.flatten(lora.initial(kernels, read.params, adapter, jax.random.key(0)))
  params = {
    path: np.asarray(leaf + 0.2 * rng.normal(size=leaf.shape), np.float32) for path, leaf in params.items()
  }
  flat = pytrees.flatten(read.params)
  frozen = pytrees.unflatten(
    {path: leaf for path, leaf in flat.items() if not lora.is_trained(path, adapter)}
  )
  merged = jax.tree.map(np.asarray, lora.merged(frozen, pytrees.unflatten(params), adapter.scale))
  adapted = Adapted(adapter, pytrees.unflatten(params), str(base))
  return dataclasses.replace(read, params=merged, adapted=adapted)


@pytest.mark.parametrize('name', OURS)
def test_our_adapter_gives_our_logits_in_peft(name, tmp_path):
  """Also when PEFT's own writing of it is read again."""
  base, options = OURS[name]
  peer = make_base(base, tmp_path / 'base')
  ours = with_adapter(tmp_path / 'base', **options)
  note, *past = PeftFormat().write(ours, tmp_path / 'adapter')
  assert bool(past) == (name == 'past the module')
  assert note.endswith(f'parameters, to be added to those of {tmp_path / "base"}.')
  images = peers.images_of((16, 16))
  mine = peers.run(peers.make_ours(ours), images)[-1]
  theirs = peft.PeftModel.from_pretrained(peer, tmp_path / 'adapter')
  theirs.save_pretrained(tmp_path / 'again')
  if past:
    assert np.abs(logits(theirs, images) - mine).max() > 1e-2
    theirs = theirs.merge_and_unload()
  np.testing.assert_allclose(logits(theirs, images), mine, atol=1e-5, rtol=1e-5)
  again = vit_jax.load(tmp_path / 'base', adapter=tmp_path / 'again')
  np.testing.assert_allclose(again(images), mine, atol=1e-5, rtol=1e-5)
  np.testing.assert_allclose(vit_jax.load(tmp_path / 'adapter')(images), mine, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
  ('options', 'why'),
  [({'pool': 'gap'}, "pool 'gap', and the base 'token'"), ({'patch': 4}, 'patch 4, and the base 8')],
)
def test_a_model_that_computes_otherwise_than_its_base_is_refused(options, why, tmp_path):
  make_base('vit', tmp_path / 'base')
  ours = with_adapter(tmp_path / 'base', targets='attention/.*kernel')
  model = dataclasses.replace(ours.architecture.model, **options)
  other = dataclasses.replace(ours, architecture=dataclasses.replace(ours.architecture, model=model))
  assert PeftFormat().unfit(ours) is None
  assert why in PeftFormat().unfit(other)


def test_what_peft_has_no_place_for_is_kept_beside_an_adapter(tmp_path):
  peer = make_base('vit', tmp_path / 'base')
  ours = with_adapter(tmp_path / 'base', targets='attention/.*kernel')
  names = tuple(f'class {number}' for number in range(ours.architecture.num_classes))
  larger = dataclasses.replace(ours.architecture, image_size=(32, 32))
  pixels = Preprocess(
    (32, 32), mean=(0.1, 0.2, 0.3), std=(0.4,), shorter=40, method='bicubic', antialias=True
  )
  ours = dataclasses.replace(ours, architecture=larger, class_names=names, preprocess=pixels, link='sigmoid')
  PeftFormat().write(ours, tmp_path / 'adapter')
  loaded = vit_jax.load(tmp_path / 'adapter')
  assert (loaded.preprocess, loaded.class_names, loaded.link) == (pixels, names, 'sigmoid')
  theirs, images = (
    peft.PeftModel.from_pretrained(peer, tmp_path / 'adapter').eval(),
    peers.images_of((32, 32)),
  )
  with torch.no_grad():
    expected = theirs(peers.to_torch(images), interpolate_pos_encoding=True).logits
  np.testing.assert_allclose(loaded(images), np.asarray(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('dora', [False, True])
def test_gradients_are_those_of_peft(dora, tmp_path):
  """Of A, B and the magnitudes, by which a run learns what PEFT learns."""
  peer = make_base('vit', tmp_path / 'base')
  model = peft.get_peft_model(peer, peft.LoraConfig(r=4, target_modules=['q_proj', 'mlp.fc2'], use_dora=dora))
  with torch.no_grad():
    for index, (key, value) in enumerate(model.named_parameters()):
      if 'lora_' in key and 'magnitude' not in key:
        value.copy_(0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(index)))
  images = peers.images_of((16, 16))
  model(peers.to_torch(images)).logits.square().sum().backward()
  found = {key: np.asarray(value.grad) for key, value in model.named_parameters() if 'lora_' in key}

  read = formats.read(tmp_path / 'base')
  adapter = AdapterConfig(rank=4, alpha=8.0, targets='query/kernel|dense_out/kernel', dora=dora)
  named = {'query': 'attention.q_proj', 'dense_out': 'mlp.fc2'}
  params = pytrees.flatten(
    lora.initial(lora.targets(read.architecture.abstract(), adapter), read.params, adapter, jax.random.key(0))
  )
  of_theirs = {}
  for path in params:
    *_, layer, kind = path.split('/')
    if kind in lora.NAMES:
      kinds = {'lora_a': 'lora_A.default.weight', 'lora_b': 'lora_B.default.weight'}
      suffix = f'{named[layer]}.{kinds.get(kind, "lora_magnitude_vector.default.weight")}'
      of_theirs[path] = [key for key in found if key.endswith(suffix)]
  values = dict(model.named_parameters())
  for path, keys in of_theirs.items():
    params[path] = jnp.stack([jnp.asarray(values[key].detach().numpy().T) for key in keys])
  graphdef, _ = read.architecture.graph_and_shapes()

  def loss(params):
    network = nnx.merge(graphdef, lora.beside(read.params, pytrees.unflatten(params)))
    lora.attach(network, pytrees.unflatten(params), adapter, None)
    return jnp.square(network(images)).sum()

  grads = jax.jit(jax.grad(loss))(params)
  for path, keys in of_theirs.items():
    theirs = np.stack([found[key].T for key in keys])
    np.testing.assert_allclose(grads[path], theirs, atol=1e-5 * np.abs(theirs).max(), rtol=1e-3, err_msg=path)


def test_other_folders_are_refused(tmp_path):
  make_base('timm', tmp_path / 'base')
  model = peft.get_peft_model(
    peers.make_peer('vit', image_size=16), peft.LoraConfig(target_modules=['q_proj'])
  )
  model.save_pretrained(tmp_path / 'adapter')
  with pytest.raises(UserError, match='is of another model than the base'):
    vit_jax.load(tmp_path / 'base', adapter=tmp_path / 'adapter')
  config = json.loads((tmp_path / 'adapter' / 'adapter_config.json').read_text())
  for base in (str(tmp_path / 'adapter'), 'https://localhost/model.npz', None):
    (tmp_path / 'adapter' / 'adapter_config.json').write_text(
      json.dumps(config | {'base_model_name_or_path': base})
    )
    with pytest.raises(UserError, match='names no base that is a model here'):
      vit_jax.load(tmp_path / 'adapter')
  (tmp_path / 'adapter' / 'adapter_config.json').write_text(json.dumps(config | {'peft_type': 'IA3'}))
  with pytest.raises(UserError, match='vit_jax reads LORA'):
    vit_jax.load(tmp_path / 'base', adapter=tmp_path / 'adapter')
