"""The hybrids' ResNet against NumPy; against what the original code computed: tests/pretrained/test_released.py."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy_resnet
import pytest
import tiny
from flax import nnx

from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS, Pretrained

STEM = {'patch': 1, 'stem_width': 32, 'stem_blocks': (1, 2)}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('blocks', 'channels', 'image_size'),
  [((), 1, (17, 31)), ((2,), 3, (16, 24)), ((1, 3), 3, (17, 31)), ((1, 3), 1, (16, 24))],
)
def test_feature_maps_equal_numpy(blocks, channels, image_size):
  """Odd sizes too: 'SAME' pads more at the end, with zeros or, before the maximum, with -inf."""
  model = tiny.options(**STEM | {'stem_blocks': blocks})
  graphdef, params = tiny.build(model, image_size=image_size, channels=channels)
  x = tiny.images(2, image_size, channels)
  expected = numpy_resnet.forward(params['stem'], x)
  with jax.default_matmul_precision('highest'):
    features = jax.jit(nnx.merge(graphdef, params).stem)(x)
  rows, columns = ((side + 3) // 4 for side in image_size)
  if len(blocks) == 2:
    rows, columns = (rows + 1) // 2, (columns + 1) // 2
  assert features.shape == expected.shape == (2, rows, columns, [32, 128, 256][len(blocks)])
  np.testing.assert_allclose(features, expected, atol=2e-5)
  assert expected.std() > 0.1


CONVOLUTIONS = {'patch': 1, 'stem_convolutions': ((32, 2), (64, 1), (96, 2))}


@pytest.mark.parametrize(('channels', 'image_size'), [(1, (17, 31)), (3, (16, 24))])
def test_convolutions_in_front_equal_numpy(channels, image_size):
  graphdef, params = tiny.build(tiny.options(**CONVOLUTIONS), image_size=image_size, channels=channels)
  x = tiny.images(2, image_size, channels)
  expected = np.asarray(x, np.float64)
  for number, (_, stride) in enumerate(CONVOLUTIONS['stem_convolutions'], 1):
    expected = numpy_resnet.convolve(expected, params['stem'][f'convolution{number}'], stride)
    expected = np.maximum(numpy_resnet.normalise(expected, params['stem'][f'norm{number}'], 1e-6), 0)
  with jax.default_matmul_precision('highest'):
    outputs = jax.jit(nnx.merge(graphdef, params).stem)(x)
  assert outputs.shape == expected.shape == (2, *((side + 3) // 4 for side in image_size), 96)
  np.testing.assert_allclose(outputs, expected, atol=2e-5)


@pytest.mark.parametrize('kind', ['npz', 'timm', 'hf'])
def test_model_with_convolutions_in_front_is_written_as_a_run_only(kind, tmp_path):
  model = tiny.options(**CONVOLUTIONS).resolved()
  _, params = tiny.build(model, image_size=(16, 16), channels=3)
  architecture = Architecture(model, (16, 16), 3, 5)
  pretrained = Pretrained(architecture, jax.tree.map(np.asarray, params), Preprocess((16, 16), 3))
  with pytest.raises(UserError, match=r'(no place for|cannot hold|has no) '):
    formats.written_by(kind, pretrained).write(pretrained, tmp_path / 'model.npz')
  FORMATS['run']().write(pretrained, tmp_path / 'run')
  assert formats.read(tmp_path / 'run').architecture == architecture


@pytest.mark.slow
def test_initial_units_without_projection_do_nothing():
  model = tiny.options(patch=1, stem_width=64, stem_blocks=(2, 1))

  def initial():
    vit = Architecture(model, (16, 16), 3, 5).build(nnx.Rngs(0))
    features = jax.random.uniform(jax.random.key(0), (1, 4, 4, 256))
    return nnx.to_pure_dict(nnx.state(vit.stem)), features, vit.stem.block1.unit2(features)

  stem, features, unchanged = jax.jit(initial)()
  for path, leaf in jax.tree.leaves_with_path(stem):
    *_, layer, name = (key.key for key in path)
    if name == 'kernel':
      inputs = np.prod(leaf.shape[:3])
      assert float(leaf.std()) == pytest.approx(inputs**-0.5, rel=0.1), layer
    else:
      assert np.unique(leaf) == (name == 'scale' and layer != 'norm3'), layer
  np.testing.assert_array_equal(unchanged, features)  # by a unit that does not project


@pytest.mark.slow
def test_epsilons_equal_numpys():
  """That of the norms with small inputs of a norm, that of the weights with small weights."""
  graphdef, params = tiny.build(tiny.options(**STEM), image_size=(16, 16))
  params['stem']['root']['kernel'] = 3e-5 * params['stem']['root']['kernel']
  x = 1e-3 * tiny.images(2, (16, 16))
  expected = numpy_resnet.forward(params['stem'], x)
  assert abs(numpy_resnet.forward(params['stem'], x, epsilon=1e-5) - expected).max() > 1e-3
  with jax.default_matmul_precision('highest'):
    np.testing.assert_allclose(nnx.merge(graphdef, params).stem(x), expected, atol=2e-5)
    other, _ = tiny.build(tiny.options(**STEM, norm_epsilon=1e-3), image_size=(16, 16))
    features = nnx.merge(other, params).stem(x)
  np.testing.assert_allclose(features, numpy_resnet.forward(params['stem'], x, epsilon=1e-3), atol=2e-5)


@pytest.mark.slow
def test_bfloat16_keeps_parameters_and_norms_in_float32():
  model = tiny.options(**STEM)
  graphdef, params = tiny.build(model, image_size=(16, 16))
  half, half_params = tiny.build(tiny.options(**STEM, dtype='bfloat16'), image_size=(16, 16))
  chex.assert_type(jax.tree.leaves(half_params), jnp.float32)
  x = tiny.images(2, (16, 16))
  expected, features = (nnx.merge(*pair).stem(x) for pair in ((graphdef, params), (half, params)))
  chex.assert_type(features, jnp.bfloat16)
  assert 0 < abs(features.astype(jnp.float32) - expected).mean() < 0.05 * abs(expected).mean()
  jaxpr = jax.make_jaxpr(lambda params, x: nnx.merge(half, params).stem(x))(half_params, x)
  dtypes = {}
  for equation, _ in tiny.equations(jaxpr.jaxpr):
    name = equation.primitive.name
    dtypes.setdefault(name, set()).update(v.aval.dtype.name for v in equation.invars)
  assert dtypes['conv_general_dilated'] == {'bfloat16'} and dtypes['rsqrt'] == {'float32'}


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'stem_width': 48}, 'stem_width is 48; choose a multiple of 32'),
    (
      {'stem_blocks': None, 'stem_convolutions': ((48, 2),)},
      'stem_convolutions is 48; choose a multiple of 32',
    ),
    ({'stem_convolutions': ((32, 2),)}, r'stem_convolutions, and a ResNet of stem_blocks \(1, 2\); leave'),
    ({'stem_blocks': (1, 0)}, r'stem_blocks is \(1, 0\); each stage needs'),
  ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
  with pytest.raises(UserError, match=message):
    tiny.build(tiny.options(**STEM | changes), image_size=(16, 16))
