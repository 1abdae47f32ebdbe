"""The BiT ResNets against NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy_bit
import pytest
import tiny
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture

RESNET = tiny.resnet()


@pytest.mark.slow
@pytest.mark.parametrize(('channels', 'image_size', 'unroll'), [(3, (16, 24), True), (1, (17, 31), False)])
def test_logits_and_features_equal_numpy(channels, image_size, unroll):
  """Odd sizes too: zeros on every side, also before the maximum, where all may be negative."""
  graphdef, params = tiny.build(tiny.resnet(blocks=(1, 3), unroll=unroll), channels=channels)
  x = tiny.images(2, image_size, channels)
  expected = numpy_bit.forward(params, x)

  def found(params, x):
    resnet = nnx.merge(graphdef, params)
    units = [resnet.feature_map(x, layer) for layer in range(resnet.config.num_layers)]
    return units, resnet.feature_map(x), resnet.features(x, -1), resnet(x)

  with jax.default_matmul_precision('highest'):
    units, final, tokens, logits = jax.jit(found)(params, x)
  # Their values are sums of up to 42, and float32's errors are relative to these.
  for ours, grid in zip(units, expected['units'], strict=True):
    np.testing.assert_allclose(ours, grid, atol=3e-6 * abs(grid).max())
  np.testing.assert_allclose(final, expected['final'], atol=2e-5)
  np.testing.assert_allclose(tokens, expected['final'].reshape(2, -1, 256), atol=2e-5)
  np.testing.assert_allclose(logits, expected['logits'], atol=2e-5)
  assert np.std(expected['logits']) > 0.1


@pytest.mark.slow
def test_epsilons_equal_numpys():
  """That of the norms with small inputs of a norm, that of the weights with small weights."""
  graphdef, params = tiny.build(RESNET)
  params['root']['kernel'] = 1e-5 * params['root']['kernel']
  params['block1']['unit1']['conv1']['kernel'] *= 1e-4
  x = 1e-3 * tiny.images(2, (16, 16))
  expected = numpy_bit.forward(params, x)['logits']
  assert abs(numpy_bit.forward(params, x, epsilon=1e-6)['logits'] - expected).max() > 1e-3
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected, atol=2e-5)
  other, _ = tiny.build(tiny.resnet(norm_epsilon=1e-3))
  expected = numpy_bit.forward(params, x, epsilon=1e-3)['logits']
  np.testing.assert_allclose(tiny.apply(other, params, x), expected, atol=2e-5)


@pytest.mark.slow
def test_initial_parameters_have_the_papers_distributions():
  model = tiny.resnet(blocks=(1,), head_bias=-10.0, dtype='bfloat16')

  def initial(x):
    resnet = Architecture(model, (9, 9), 3, 7).build(nnx.Rngs(0))
    return nnx.to_pure_dict(nnx.state(resnet)), resnet.features(x), resnet(x)

  params, tokens, logits = jax.jit(initial)(jnp.ones((1, 9, 9, 3)))
  np.testing.assert_array_equal(logits, np.full((1, 7), -10.0))
  assert logits.dtype == jnp.float32 and tokens.dtype == jnp.bfloat16
  for path, leaf in jax.tree.leaves_with_path(params):
    assert leaf.dtype == jnp.float32
    if path[-1].key == 'kernel' and path[0].key != 'head':
      assert float(leaf.std()) == pytest.approx(np.prod(leaf.shape[:3]) ** -0.5, rel=0.15)


def _is_product_of_a_feature_map(equation):
  return equation.primitive.name == 'dot_general' and any(v.aval.ndim == 4 for v in equation.invars)


@pytest.mark.parametrize(
  ('remat', 'unroll'), [('none', False), ('dots', True), ('block', False), ('block', True)]
)
def test_rematerialisation_computes_again_what_it_says(remat, unroll):
  """The backward pass computes again: 'dots' nothing, 'block' what of a unit lies before another: two kernels."""
  graphdef, params = tiny.build(tiny.resnet(blocks=(3,), remat=remat, unroll=unroll))

  def loss(params, x):
    return jnp.square(nnx.merge(graphdef, params)(x)).sum()

  jaxpr = jax.make_jaxpr(jax.grad(loss))(params, tiny.images(1, (16, 16)))
  run = list(tiny.equations(jaxpr.jaxpr))
  forward = 1 + 3  # of the root and three units
  backward = 2 * forward - 1 + 4  # that of the images, which nothing needs, in four parts
  convolutions = sum(times for equation, times in run if equation.primitive.name == 'conv_general_dilated')
  assert convolutions == forward + backward + (3 if remat == 'block' else 0)
  # By kernels of one pixel: a projection and two in each unit, forwards and two gradients.
  products = sum(times for equation, times in run if _is_product_of_a_feature_map(equation))
  assert products == 3 * (1 + 2 * 3) + (3 if remat == 'block' else 0)
  assert any(equation.primitive.name == 'scan' for equation, _ in run) != unroll


@pytest.mark.nightly
def test_rematerialisation_and_unrolling_do_not_change_gradients():
  x = tiny.images(2, (16, 16))

  def gradients(**changes):
    graphdef, params = tiny.build(tiny.resnet(blocks=(1, 3), **changes))
    with jax.default_matmul_precision('highest'):
      return jax.jit(jax.grad(lambda params: jnp.square(nnx.merge(graphdef, params)(x)).sum()))(params)

  expected = gradients(unroll=True)
  for changes in ({'remat': 'dots'}, {'remat': 'block'}):
    chex.assert_trees_all_close(gradients(**changes), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'width': 48}, 'width is 48; choose a multiple of 32'),
    ({'blocks': (1, 0)}, r'blocks is \(1, 0\); each stage needs'),
    ({'width': None}, 'which also needs config.model.width'),
  ],
)
def test_sizes_that_no_resnet_has_are_refused(changes, message):
  with pytest.raises(UserError, match=message):
    tiny.build(tiny.resnet(**changes))
