"""EfficientNets: published sizes, and training against PyTorch. Logits: tests/pretrained/test_efficientnet_files.py."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import run_steps
import tiny
from flax import nnx

from vit_jax import config as c
from vit_jax.config import EfficientNetConfig
from vit_jax.foundation import pytrees
from vit_jax.models import batch_norm, mbconv
from vit_jax.models.base import Architecture
from vit_jax.models.efficientnet_families import rounded_channels
from vit_jax.training.run import Dataset, Run

TINY = tiny.efficientnet()


# The paper, table 2: billions of multiplications with their additions, at the size's resolution.
@pytest.mark.parametrize(
  ('variant', 'image_size', 'billions'),
  [('B0', 224, 0.39), ('B3', 300, 1.8), ('B4', 380, 4.2), ('B5', 456, 9.9), ('B6', 528, 19), ('B7', 600, 37)],
)
def test_flops_are_those_of_the_paper(variant, image_size, billions):
  architecture = Architecture(EfficientNetConfig(variant), (image_size, image_size), 3, 1000)
  found = architecture.forward_flops()
  assert found / 2e9 == pytest.approx(billions, rel=0.05)


def test_channels_are_rounded_as_in_the_published_code():
  """Examples by hand of `round_filters`: to the nearest multiple of 8, but not by more than 10 % down."""
  assert [rounded_channels(channels, 1.2) for channels in (16, 24, 40, 80, 320)] == [24, 32, 48, 96, 384]
  assert rounded_channels(32, 4.3) == 136 and rounded_channels(1280, 4.3) == 5504
  assert (
    rounded_channels(16, 1.1) == 16 and rounded_channels(24, 0.5) == 16 and rounded_channels(40, 0.28) == 16
  )


IMAGES = np.random.default_rng(1).uniform(-1, 1, (3, 4, 40, 40, 3)).astype(np.float32)  # of three steps


def in_training(model: EfficientNetConfig):
  """(parameters, running statistics, a function of both and a batch: loss, (logits, statistics after it))."""
  graphdef, state = tiny.build(model)
  _, *variables = nnx.split(nnx.merge(graphdef, state), nnx.Param, nnx.BatchStat)

  def loss(params, statistics, x):
    network = nnx.merge(graphdef, pytrees.merged(params, statistics))
    logits = network(x, keys=tiny.keys(len(x)))
    return jnp.square(logits).sum(), (logits, nnx.to_pure_dict(nnx.state(network, nnx.BatchStat)))

  return *map(nnx.to_pure_dict, variables), loss


@pytest.fixture(scope='module')
def peer():
  """transformers' model with the same parameters, in training, its batch norms with our momentum."""
  torch = pytest.importorskip('torch', reason="needs the extra 'peers' (pip install -e '.[peers]')")
  transformers = pytest.importorskip('transformers')
  from vit_jax.data.preprocess import Preprocess
  from vit_jax.pretrained.base import Pretrained
  from vit_jax.pretrained.torch_names import scatter
  from vit_jax.pretrained.transformers_efficientnet import EfficientNetFormat

  torch.set_num_threads(1)
  _, state = tiny.build(TINY)
  architecture = Architecture(TINY, (40, 40), 3, 5)
  export = EfficientNetFormat().export(Pretrained(architecture, state, Preprocess((40, 40))))
  model = transformers.EfficientNetForImageClassification(
    transformers.EfficientNetConfig(**export.config)
  ).train()
  tensors = scatter(export.rules, pytrees.flatten(state))
  model.load_state_dict(
    {name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}, strict=False
  )
  for module in model.modules():
    if isinstance(module, torch.nn.BatchNorm2d):
      module.momentum = 0.01
    elif isinstance(module, torch.nn.Dropout):
      module.p = 0.0
  return model, export.rules


@pytest.mark.slow
def test_statistics_after_three_steps_and_logits_of_the_batch_are_pytorchs(peer):
  import torch

  from vit_jax.pretrained.torch_names import gather

  params, statistics, loss = in_training(TINY)
  call = jax.jit(loss)
  model, rules = peer
  for batch in IMAGES:
    with jax.default_matmul_precision('highest'):
      _, (logits, statistics) = call(params, statistics, batch)
    theirs = model(torch.from_numpy(batch.transpose(0, 3, 1, 2).copy())).logits
  np.testing.assert_allclose(logits, theirs.detach(), atol=2e-4)
  ours = pytrees.flatten(statistics)
  tensors = model.state_dict()
  rules = [rule for rule in rules if rule.path in ours]
  expected = gather(rules, ours, lambda name: tensors[name].numpy())
  assert len(ours) == len(expected) > 2 * 8 * 2
  for path, array in expected.items():
    np.testing.assert_allclose(ours[path], array, rtol=1e-5, atol=1e-5, err_msg=path)


@pytest.mark.slow
def test_norms_whose_scale_is_not_trained_use_their_statistics_and_keep_them():
  graphdef, state = tiny.build(TINY)
  images, before, found = jnp.asarray(IMAGES[0]), pytrees.flatten(state), {}
  paths = [path for path in before if path.endswith('norm/scale')]

  def call(trained):
    network = nnx.merge(graphdef, state)
    batch_norm.freeze(network, trained)
    logits = network(images, keys=tiny.keys(len(images)))
    return logits, nnx.to_pure_dict(nnx.state(network, nnx.BatchStat))

  for trained in ((), tuple(paths[:1]), tuple(paths)):
    found[len(trained)], after = jax.jit(call, static_argnums=0)(trained)
    moved = {
      path for path, array in pytrees.flatten(after).items() if not np.array_equal(array, before[path])
    }
    norms = [path.removesuffix('scale') for path in trained]
    assert moved == {f'{norm}{name}' for norm in norms for name in ('mean', 'var')}
  np.testing.assert_allclose(found[0], nnx.merge(graphdef, state)(images), atol=1e-5)
  assert np.abs(found[0] - found[len(paths)]).max() > 0.01


@pytest.mark.slow
def test_a_step_leaves_the_statistics_of_a_frozen_network_alone():
  config = c.Config(
    total='2 steps',
    batch_size=8,
    model=tiny.efficientnet(),
    data=c.DataConfig(image_size=(16, 16)),
    optimizer=c.OptimizerConfig(freeze=('^(?!head/)',)),
    mesh=c.MeshConfig(data=1),
  )
  program = Run(config, Dataset(8, ('a', 'b')), jax.devices()[:1]).program
  state = program.init(0)
  before = jax.tree.map(np.asarray, (state.model_state, state.params['head']))
  after, _ = program.step(state, run_steps.batch(program, 0, classes=2))
  after = after.model_state, after.params['head']
  same = [jax.tree.all(jax.tree.map(np.array_equal, *pair)) for pair in zip(before, after, strict=True)]
  assert same == [True, False]


@pytest.mark.nightly  # compiling gradients of grouped convolutions takes a CPU a while
def test_rematerialisation_and_unrolling_change_neither_gradients_nor_statistics():
  def found(**changes):
    params, statistics, loss = in_training(tiny.efficientnet(**changes))
    with jax.default_matmul_precision('highest'):
      return jax.jit(jax.grad(loss, has_aux=True))(params, statistics, IMAGES[0])

  expected = found()
  for changes in ({'remat': 'block'}, {'remat': 'dots', 'unroll': True}):
    for ours, other in zip(jax.tree.leaves(found(**changes)), jax.tree.leaves(expected), strict=True):
      np.testing.assert_allclose(ours, other, rtol=1e-3, atol=1e-4 * max(1.0, float(jnp.abs(other).max())))


@pytest.mark.slow
def test_drop_rates_rise_with_the_depth_as_published(monkeypatch):
  """drop_connect_rate * block / blocks, in the blocks that add their input; the head's dropout apart."""
  seen = []

  def recorded(x, rate, keys, place):
    jax.debug.callback(lambda rate: seen.append(float(rate)), rate)
    return x

  monkeypatch.setattr(mbconv, 'drop_path', recorded)
  graphdef, state = tiny.build(tiny.efficientnet(depth_multiplier=0.5, stochastic_depth=0.2))
  call = jax.jit(lambda x, keys: nnx.merge(graphdef, state)(x, keys=keys))
  jax.block_until_ready(call(tiny.images(2, (32, 32)), tiny.keys(2)))
  jax.effects_barrier()
  # 1 + 1 + 1 + 2 + 2 + 2 + 1 blocks, of which the second of a stage adds its input.
  np.testing.assert_allclose(sorted(seen), [0.2 * block / 10 for block in (4, 6, 8)], rtol=1e-6)


@pytest.mark.parametrize(
  ('size', 'inputs', 'depthwise', 'fan_out'),
  [(1, 16, False, 256), (3, 3, False, 9 * 256), (5, 256, True, 25)],
)
def test_initial_kernels_have_the_published_deviation(size, inputs, depthwise, fan_out):
  """sqrt(2 / outputs that an input pixel reaches), of a depthwise convolution in its own channel alone."""
  conv = mbconv.Conv(
    inputs, 256, size, depthwise=depthwise, bias=True, dtype=jnp.dtype('float32'), rngs=nnx.Rngs(0)
  )
  assert float(conv.kernel[...].std()) == pytest.approx(math.sqrt(2 / fan_out), rel=0.1)
  assert conv.bias is not None and not np.any(conv.bias[...])
