"""The BiT ResNets against NumPy, and their published sizes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy_bit
import pytest
import tiny
from flax import nnx

from vit_jax import config, models
from vit_jax.errors import UserError
from vit_jax.evaluation import features
from vit_jax.models.variants import ResNetSizes, resolve
from vit_jax.parallel.mesh import make_mesh
from vit_jax.training.step import make_train_step

RESNET = config.ViTConfig(variant='custom', resnet_blocks=(1, 2), width=32, pool='gap', norm_epsilon=1e-5)


def options(**changes) -> config.ViTConfig:
  return dataclasses.replace(RESNET, **changes)


@pytest.mark.parametrize(('channels', 'image_size'), [(3, (16, 24)), (1, (17, 31))])
def test_logits_and_features_equal_numpy(channels, image_size):
  """Odd sizes too: zeros on every side, also before the maximum, where all may be negative."""
  graphdef, params = tiny.build(RESNET, channels=channels)
  x = tiny.images(2, image_size, channels)
  expected = numpy_bit.forward(params, x)

  def found(params, x):
    resnet = nnx.merge(graphdef, params)
    units = [resnet.feature_map(x, layer) for layer in range(resnet.depth)]
    return units, resnet.feature_map(x), resnet.features(x, -1), resnet(x)

  with jax.default_matmul_precision('highest'):
    units, final, tokens, logits = jax.jit(found)(params, x)
  for ours, grid in zip(units, expected['units'], strict=True):
    np.testing.assert_allclose(ours, grid, atol=1e-4)
  np.testing.assert_allclose(final, expected['final'], atol=2e-5)
  np.testing.assert_allclose(tokens, expected['final'].reshape(2, -1, 256), atol=2e-5)
  np.testing.assert_allclose(logits, expected['logits'], atol=2e-5)
  assert np.std(expected['logits']) > 0.1


def test_epsilons():
  """That of the norms with small inputs of a norm, that of the weights with small weights."""
  graphdef, params = tiny.build(RESNET)
  params['root']['kernel'] = 1e-5 * params['root']['kernel']
  params['block1']['unit1']['conv1']['kernel'] *= 1e-4
  x = 1e-3 * tiny.images(2, (16, 16))
  expected = numpy_bit.forward(params, x)['logits']
  assert abs(numpy_bit.forward(params, x, epsilon=1e-6)['logits'] - expected).max() > 1e-3
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected, atol=2e-5)
  other, _ = tiny.build(options(norm_epsilon=1e-3))
  expected = numpy_bit.forward(params, x, epsilon=1e-3)['logits']
  np.testing.assert_allclose(tiny.apply(other, params, x), expected, atol=2e-5)


# The layers that 'Big Transfer' and its released code give, counted by PyTorch
# (tests/checkpoint/test_bit_files.py does so for the small ones).
COUNTS = {
  'R50x1': 25_549_352,
  'R50x3': 217_319_080,
  'R101x1': 44_541_480,
  'R101x3': 387_934_888,
  'R152x2': 236_335_208,
  'R152x4': 936_533_224,
}


@pytest.mark.parametrize('variant', COUNTS)
def test_parameter_count(variant):
  assert tiny.count(config.ViTConfig(variant=variant, pool='gap'), 1000) == COUNTS[variant]


def test_sizes():
  assert resolve(config.ViTConfig(variant='R50x2')) == ResNetSizes((3, 4, 6, 3), 128)
  assert resolve(config.ViTConfig(variant='R50x1', width=32)) == ResNetSizes((3, 4, 6, 3), 32)
  assert resolve(RESNET).depth == 3 and resolve(RESNET).pixels == 8


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_initial_parameters(dtype):
  model = options(resnet_blocks=(1,), head_bias=-10.0, dtype=dtype)

  def initial(x):
    resnet = models.build(model, image_size=(9, 9), channels=3, num_classes=7, rngs=nnx.Rngs(0))
    return nnx.to_pure_dict(nnx.state(resnet)), resnet.features(x), resnet(x)

  params, tokens, logits = jax.jit(initial)(jnp.ones((1, 9, 9, 3)))
  np.testing.assert_array_equal(logits, np.full((1, 7), -10.0))
  assert logits.dtype == jnp.float32 and tokens.dtype == dtype
  for path, leaf in jax.tree.leaves_with_path(params):
    assert leaf.dtype == jnp.float32
    if path[-1].key == 'kernel' and path[0].key != 'head':
      assert float(leaf.std()) == pytest.approx(np.prod(leaf.shape[:3]) ** -0.5, rel=0.15)


@pytest.mark.parametrize('remat', ['none', 'dots', 'block'])
def test_rematerialisation(remat):
  """The backward pass computes again: 'dots' no convolution, 'block' the two that lie before another."""
  graphdef, params = tiny.build(options(resnet_blocks=(1,), remat=remat))
  loss = lambda params, x: jnp.square(nnx.merge(graphdef, params)(x)).sum()
  jaxpr = jax.make_jaxpr(jax.grad(loss))(params, tiny.images(1, (8, 8)))
  names = [equation.primitive.name for equation, _ in tiny.equations(jaxpr.jaxpr)]
  forward, backward = 5, 2 * 5 - 1  # the images need no gradient
  assert names.count('conv_general_dilated') == forward + backward + (2 if remat == 'block' else 0)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'pool': 'token'}, "pool is 'token'; a ResNet has 'gap'"),
    ({'heads': 4}, 'heads is 4, which a ResNet does not have'),
    ({'stochastic_depth': 0.1}, 'stochastic_depth is 0.1, which a ResNet'),
    ({'position': 'sincos2d'}, 'position is sincos2d, which a ResNet'),
    ({'width': 48}, 'width is 48; choose a multiple of 32'),
    ({'resnet_blocks': (1, 0)}, r'resnet_blocks is \(1, 0\); each stage needs'),
    ({'resnet_blocks': ()}, r'resnet_blocks is \(\); give at least one stage'),
    ({'width': None}, 'which also needs config.model.width'),
    ({'variant': 'B/16'}, "makes a ResNet, and config.model.variant is 'B/16'"),
  ],
)
def test_options_that_do_not_fit(changes, message):
  with pytest.raises(UserError, match=message):
    tiny.build(options(**changes))


def test_attention_and_layers_that_there_are_not():
  graphdef, params = tiny.build(RESNET)
  with pytest.raises(UserError, match='A ResNet has no attention to show'):
    nnx.merge(graphdef, params).attention(tiny.images())
  features.check(RESNET, 2, 'gap', 'option')
  with pytest.raises(UserError, match='choose a block from 0 to 2'):
    features.check(RESNET, 3, None, 'option')
  with pytest.raises(UserError, match="pool is 'token', which this model cannot; choose gap"):
    features.check(RESNET, None, 'token', 'option')


CONFIG = config.Config(
  batch_size=8,
  total='4 steps',
  model=options(resnet_blocks=(1,), remat='block'),
  data=config.DataConfig(image_size=(8, 8)),
  optimizer=config.OptimizerConfig(freeze=('^root/',)),
  schedule=config.ScheduleConfig(learning_rate=1e-2),
)


def _trained(mesh: config.MeshConfig, devices=None):
  """(losses of two steps, parameters before and after), on images of noise."""
  run = dataclasses.replace(CONFIG, mesh=mesh)
  program = make_train_step(run, make_mesh(mesh, devices), num_classes=4, examples=64)
  rng = np.random.default_rng(0)
  batch = {'image': rng.integers(0, 256, (8, 8, 8, 3), np.uint8), 'label': np.arange(8, dtype=np.int32) % 4}
  inputs = {name: jax.device_put(array, program.batch[name].sharding) for name, array in batch.items()}
  step = program.step.lower(program.state, program.batch).compile()
  state = program.init(0)
  before, losses = jax.tree.map(np.asarray, state.params), []
  for _ in range(2):
    state, metrics = step(state, inputs)
    losses.append(float(metrics['train/loss']))
  return losses, before, state.params


def test_a_sharded_step_equals_that_of_one_device():
  """Every parameter has a rule; what is frozen stays."""
  losses, before, after = _trained(config.MeshConfig(data=2, fsdp=2, tensor=2, min_shard_size=0))
  alone, _, expected = _trained(config.MeshConfig(), jax.devices()[:1])
  np.testing.assert_allclose(losses, alone, rtol=1e-5)
  assert losses[1] != losses[0]
  jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=1e-3), after, expected)
  np.testing.assert_array_equal(after['root']['kernel'], before['root']['kernel'])
  kernel = after['head']['kernel']
  assert abs(kernel - before['head']['kernel']).max() > 0 and not kernel.sharding.is_fully_replicated
