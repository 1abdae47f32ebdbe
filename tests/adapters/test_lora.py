"""Adapters in networks and in runs: what is trained, what is saved, and what becomes of a lost base."""

import dataclasses
import functools
import pathlib
import re
import shutil

import jax
import jax.numpy as jnp
import kill_and_resume
import numpy as np
import pytest
import tiny
from flax import nnx

import vit_jax
from vit_jax import recipes
from vit_jax.adapters import lora
from vit_jax.config import AdapterConfig, ClassificationEvaluatorConfig, Config, DataConfig, InitConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import Pretrained
from vit_jax.pretrained.runs import RunFormat
from vit_jax.training import loop
from vit_jax.training.evaluate_checkpoint import evaluate_newest
from vit_jax.training.optimizer import learning_rate_factors, trainable_mask

MODELS = {
  'vit': (tiny.options(pool='map', mlp='local'), r'kernel$'),
  'axial': (tiny.options(axial=True, class_token=False, pool='gap'), r'blocks/.*kernel$'),
  'mixer': (tiny.mixer(), r'mlp/.*kernel$'),
  'resnet': (tiny.resnet(), r'kernel$'),
  'efficientnet': (tiny.efficientnet(), r'kernel$'),
}


def adapted(model, adapter, size):
  """(graphdef, parameters of the base, those that are trained, all random, and the model's state)."""
  graphdef, variables = tiny.build(model, image_size=size)
  architecture = Architecture(model, size, 3, 5)
  state = architecture.state_paths()
  flat = pytrees.flatten(variables)
  params = pytrees.unflatten({path: leaf for path, leaf in flat.items() if path not in state})
  kernels = lora.targets(architecture.abstract(), adapter)
  trained = pytrees.flatten(lora.initial(kernels, params, adapter, jax.random.key(0)))
  rng = np.random.default_rng(1)
  trained = {path: leaf + 0.1 * rng.standard_normal(leaf.shape) for path, leaf in trained.items()}
  frozen = {path: leaf for path, leaf in flat.items() if not lora.is_trained(path, adapter)}
  return graphdef, pytrees.unflatten(frozen), pytrees.unflatten(trained)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _unmerged(graphdef, base, trained, adapter, x, keys):
  network = nnx.merge(graphdef, lora.beside(base, trained))
  lora.attach(network, trained, adapter, keys)
  return network(x)


def unmerged(graphdef, base, trained, adapter, x, keys=None):
  with jax.default_matmul_precision('highest'):
    return _unmerged(graphdef, base, trained, adapter, x, keys)


@pytest.mark.nightly(but='vit|axial|mixer')
@pytest.mark.parametrize(
  ('name', 'dora'),
  [
    ('vit', False),
    ('vit', True),
    ('axial', True),
    ('mixer', False),
    ('resnet', True),
    ('efficientnet', False),
  ],
)
def test_merged_is_unmerged(name, dora):
  """Of any model, stacked or not, dense layers and convolutions."""
  model, targets = MODELS[name]
  size = (64, 64) if name in ('resnet', 'efficientnet') else (12, 8)
  adapter = AdapterConfig(rank=3, alpha=4.0, targets=rf'^(?!head).*{targets}', dora=dora)
  graphdef, base, trained = adapted(model, adapter, size)
  x = tiny.images(image_size=size)
  merged = tiny.apply(graphdef, lora.merged(base, trained, adapter.scale), x)
  np.testing.assert_allclose(unmerged(graphdef, base, trained, adapter, x), merged, atol=1e-5, rtol=1e-4)
  plain = lora.beside(base, trained)
  assert np.abs(tiny.apply(graphdef, plain, x) - merged).max() > 1e-3


@pytest.mark.nightly(but='False')
@pytest.mark.parametrize('dora', [False, True])
def test_dropout_of_an_example_is_its_own(dora):
  """Whatever the batch is; each block and each layer has another mask; without keys nothing is dropped."""
  adapter = AdapterConfig(rank=3, targets='^blocks/.*kernel', dropout=0.5, dora=dora)
  graphdef, base, trained = adapted(tiny.options(axial=True, class_token=False, pool='gap'), adapter, (12, 8))
  x, keys = tiny.images(), tiny.keys()
  together = unmerged(graphdef, base, trained, adapter, x, keys)
  alone = unmerged(graphdef, base, trained, adapter, x[1:2], keys[1:2])
  np.testing.assert_allclose(together[1:2], alone, atol=1e-5)
  whole = unmerged(graphdef, base, trained, adapter, x)
  assert np.abs(together - whole).max() > 1e-2
  draws = np.stack([unmerged(graphdef, base, trained, adapter, x, tiny.keys(seed=seed)) for seed in range(5)])
  assert np.abs(draws.std(axis=0)).min() > 0


def test_begins_at_the_base_as_peft_does():
  """A is uniform within 1 / sqrt(inputs), B zero, and the magnitudes are the lengths of the columns."""
  adapter = AdapterConfig(rank=8, targets='^blocks/.*kernel', dora=True)
  model = tiny.options(width=128, mlp_dim=256)
  _, variables = tiny.build(model)
  architecture = Architecture(model, (12, 8), 3, 5)
  kernels = lora.targets(architecture.abstract(), adapter)
  flat = pytrees.flatten(lora.initial(kernels, variables, adapter, jax.random.key(0)))
  base = {path: np.asarray(leaf) for path, leaf in pytrees.flatten(variables).items()}
  flat |= lora.magnitudes(base, pytrees.unflatten(flat))
  a = np.asarray(flat['blocks/mlp/dense_out/lora_a'])
  assert a.shape == (2, 256, 8) and 0.062 < np.abs(a).max() <= 1 / 16
  assert a.std() == pytest.approx(1 / 16 / np.sqrt(3), rel=0.05) and not np.array_equal(a[0], a[1])
  merged = lora.merged(lora.beside(variables, {}), pytrees.unflatten(flat), adapter.scale)
  for path, leaf in pytrees.flatten(merged).items():
    np.testing.assert_allclose(leaf, base[path], atol=1e-6, err_msg=path)


@pytest.mark.parametrize(
  ('adapter', 'says'),
  [
    (
      AdapterConfig(rank=2, targets='nowhere'),
      "targets 'nowhere' matches no kernel; the kernels are blocks/attention",
    ),
    (AdapterConfig(rank=2, targets='head/kernel'), 'matches a kernel of config.adapter.trained'),
    (
      AdapterConfig(rank=2, targets='patch_embedding', dropout=0.1),
      'patch_embedding/kernel, which is no dense layer',
    ),
  ],
)
def test_wrong_targets_are_refused(adapter, says):
  with pytest.raises(UserError, match=re.escape(says)):
    lora.targets(Architecture(tiny.options(), (8, 8), 3, 5).abstract(), adapter)


MODEL = tiny.options(patch=2, mlp_dim=64, depth=3)
CONFIG = Config(
  total='6 steps',
  batch_size=32,
  model=MODEL,
  data=DataConfig(source='digits', image_size=(8, 8), channels=1),
  evaluators={'test': ClassificationEvaluatorConfig(split='test')},
)


def write_base(folder: pathlib.Path, scale: float = 1.0) -> pathlib.Path:
  """The workdir of a run whose parameters are random, and multiplied by `scale`."""
  _, params = tiny.build(MODEL, image_size=(8, 8), channels=1, num_classes=10)
  params = jax.tree.map(lambda leaf: np.asarray(scale * leaf), params)
  names = tuple(map(str, range(10)))
  architecture, preprocess = (
    Architecture(MODEL, (8, 8), 1, 10),
    Preprocess.from_range((8, 8), -1, 1, channels=1),
  )
  RunFormat().write(Pretrained(architecture, params, preprocess, names), folder)
  return folder


@pytest.fixture(scope='module')
def base(tmp_path_factory):
  return write_base(tmp_path_factory.mktemp('runs') / 'base')


def config(base: pathlib.Path, **options) -> Config:
  adapter = AdapterConfig(**{'rank': 4, 'targets': '^blocks/.*kernel', 'dora': True, **options})
  schedule = dataclasses.replace(CONFIG.schedule, learning_rate=0.01)
  return dataclasses.replace(CONFIG, init=InitConfig(str(base)), adapter=adapter, schedule=schedule)


@pytest.mark.nightly
@pytest.mark.parametrize('base_dtype', ['float32', 'bfloat16'])
def test_a_checkpoint_has_what_is_trained_and_a_load_the_whole_model(base, base_dtype, tmp_path):
  run = config(base, base_dtype=base_dtype)
  state = loop.train(run, tmp_path / 'run')
  stored = pytrees.flatten(state.params)
  assert {path for path in stored if not path.endswith(lora.NAMES)} == {'head/kernel', 'head/bias'}
  adapted = formats.read(tmp_path / 'run').adapted  # by the names and shapes that the checkpoint has
  assert adapted is not None and pytrees.flatten(adapted.params).keys() == stored.keys()
  scores = evaluate_newest(run, tmp_path / 'run')
  model = vit_jax.load(tmp_path / 'run')
  images, labels = digits_of_test()
  accuracy = float(np.mean(np.asarray(model(images)).argmax(axis=-1) == labels))
  assert accuracy == pytest.approx(scores['test/accuracy'], abs=0.004)
  # Unmerged, in the base's number format.
  params = formats.read(base).params
  frozen = {path: leaf for path, leaf in pytrees.flatten(params).items() if not path.startswith('head/')}
  frozen = {
    p: jnp.asarray(leaf, base_dtype if p.endswith('kernel') else 'float32') for p, leaf in frozen.items()
  }
  graphdef, _ = Architecture(MODEL, (8, 8), 1, 10).graph_and_shapes()
  logits = unmerged(graphdef, pytrees.unflatten(frozen), state.params, run.adapter, images[:8])
  with jax.default_matmul_precision('highest'):
    np.testing.assert_allclose(model(images[:8]), logits, atol=1e-5)


def digits_of_test():
  from vit_jax.data.sources import open_source

  source = open_source('digits', 'test', data=CONFIG.data)
  records = [source[number] for number in range(len(source))]
  images = np.stack([np.asarray(record.image) for record in records]).reshape(-1, 8, 8, 1)
  return images.astype(np.float32) / 127.5 - 1, np.array([record.label for record in records])


@pytest.mark.nightly
def test_another_base_is_refused(tmp_path):
  """By a run that goes on, and by whoever loads what it has learned; a base that moved is named."""
  own = write_base(tmp_path / 'base')
  loop.train(config(own), tmp_path / 'run')
  shutil.rmtree(own)
  write_base(own, 1.01)
  for call in (
    lambda: vit_jax.load(tmp_path / 'run'),
    lambda: loop.train(dataclasses.replace(config(own), total='9 steps'), tmp_path / 'run', takeover=True),
  ):
    with pytest.raises(
      UserError, match=r'is not the base that the adapter was trained on: \S+ and \d+ other tensors'
    ):
      call()
  shutil.rmtree(own)
  with pytest.raises(UserError, match=f'There is no checkpoint {own}'):
    vit_jax.load(tmp_path / 'run')


def test_what_would_stay_random_is_refused(base, tmp_path):
  changed = dataclasses.replace(config(base), init=InitConfig(str(base), reinitialise=('^norm/', '^head/')))
  with pytest.raises(UserError, match=r'norm/\w+ does not come from .* name it in config.adapter.trained'):
    loop.train(changed, tmp_path / 'run')
  with pytest.raises(UserError, match=r'config.adapter.rank is 4, and an adapter needs a trained base'):
    dataclasses.replace(changed, init=InitConfig()).check('config')


def test_a_word_chooses_what_is_trained(base):
  """`configs/finetune.py:CHECKPOINT,DATA,WORD`."""

  def trained(word: str) -> set[str]:
    run = recipes.fitted(str(base), 'digits', word)
    shapes = pytrees.unflatten(Architecture(MODEL, (8, 8), 1, 10).shapes())
    mask = pytrees.flatten(trainable_mask(run.optimizer, shapes))
    factors = learning_rate_factors(run.optimizer, shapes)
    return {path for path, trains in mask.items() if trains and np.max(factors[path]) > 0}

  assert recipes.fitted(str(base), 'digits', 'lora').adapter == AdapterConfig(rank=16)
  assert recipes.fitted(str(base), 'digits', 'dora').adapter == AdapterConfig(rank=16, dora=True)
  bitfit = trained('bitfit')
  assert all(path.endswith('bias') or path == 'head/kernel' for path in bitfit) and 'norm/bias' in bitfit
  assert trained('last2') == {
    path for path in trained('all') if path.startswith(('blocks/', 'norm/', 'head/'))
  }
  assert recipes.fitted(str(base), 'digits', 'last2').optimizer.freeze_blocks == 1
  with pytest.raises(UserError, match="'last3' is of 3 blocks; choose fewer, or all"):
    recipes.fitted(str(base), 'digits', 'last3')


@pytest.mark.nightly
def test_a_killed_run_ends_in_the_same_bits(base, tmp_path):
  """With dropout of the adapters' inputs, magnitudes, an EMA and a base in bfloat16."""
  options = 'init=InitConfig({!r}), adapter=AdapterConfig({}), ema'.format(
    str(base), "rank=4, targets='^blocks/.*kernel', dropout=0.2, dora=True, base_dtype='bfloat16'"
  )
  text = kill_and_resume.CONFIG.replace("'240 steps'", "'60 steps'").replace('ema', options, 1)
  print(kill_and_resume.check(2, 1, 1, tmp_path, config_text=text))
  names = [name for name in kill_and_resume.final_arrays(tmp_path / 'killed') if name.startswith('params')]
  assert any('lora_a' in name for name in names) and not any(
    "'kernel'" in n for n in names if 'head' not in n
  )
