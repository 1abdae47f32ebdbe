"""The hybrids' ResNet against NumPy, and against what the original code computed."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy_resnet
import original
import pytest
import tiny
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.vit_config import ViTConfig

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
    features = nnx.merge(graphdef, params).stem(x)
  rows, columns = ((side + 3) // 4 for side in image_size)
  if len(blocks) == 2:
    rows, columns = (rows + 1) // 2, (columns + 1) // 2
  assert features.shape == expected.shape == (2, rows, columns, [32, 128, 256][len(blocks)])
  np.testing.assert_allclose(features, expected, atol=2e-5)
  assert expected.std() > 0.1


GOLDEN = {
  'd1_hybrid_1_1_w05': {'patch': 1, 'stem_blocks': (1, 1)},
  'd2_hybrid_stem_only_w05': {'patch': 8, 'stem_blocks': ()},
}


@pytest.mark.slow
@pytest.mark.parametrize('name', GOLDEN)
def test_stages_equal_the_original_code(golden, name):
  model = tiny.options(width=64, mlp_dim=128, depth=2, stem_width=32, **GOLDEN[name])
  graphdef, own = tiny.build(model, image_size=(64, 64), num_classes=10)
  params, expected = original.vit(golden / f'{name}.released.npz'), original.outputs(golden, name)
  chex.assert_trees_all_equal_shapes(params, own)

  def stages(params, x):
    vit = nnx.merge(graphdef, params)
    stem = vit.stem
    stages = {'gn_root': stem.root_norm(stem.root(x))}
    y = nnx.max_pool(jax.nn.relu(stages['gn_root']), (3, 3), (2, 2), 'SAME')
    for b in range(stem.stages):
      y = getattr(stem, f'block{b + 1}')(y, remat=None, unroll=False)
      stages[f'block{b + 1}'] = y
    stages['embedding'] = vit.patch_embedding(stem(x))
    stages['Transformer'] = vit.encode(vit.embed(x))
    stages['pre_logits'] = vit.pool(stages['Transformer'])
    return {f'act/{stage}': value for stage, value in stages.items()} | {'logits': vit(x)}

  with jax.default_matmul_precision('highest'):
    found = jax.jit(stages)(params, expected['images'])
  assert set(found) | {'images'} == set(expected)
  for stage, value in found.items():
    reference = expected[stage]
    value = value[: len(reference)]  # the fixtures hold the first image only of the largest maps
    np.testing.assert_allclose(value.reshape(reference.shape), reference, atol=5e-6, err_msg=stage)


COUNTS = {
  'R+Ti/16': 6_337_704,
  'R26+B/32': 101_383_976,
  'R50+L/32': 328_994_856,
}


@pytest.mark.parametrize('variant', COUNTS)
def test_parameter_count_is_the_published_one(variant):
  assert tiny.count(ViTConfig(variant=variant), 1000) == COUNTS[variant]


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


@pytest.mark.parametrize('remat', ['none', 'dots', 'block'])
def test_rematerialisation_computes_again_what_it_says(remat):
  """The backward pass computes again: 'dots' nothing, 'block' a unit's convolution and its three products."""
  graphdef, params = tiny.build(
    tiny.options(**STEM | {'stem_blocks': (1,)}, remat=remat), image_size=(16, 16)
  )

  def loss(params, x):
    return jnp.square(nnx.merge(graphdef, params)(x)).sum()

  jaxpr = jax.make_jaxpr(jax.grad(loss))(params, tiny.images(1, (16, 16)))
  equations = [equation for equation, _ in tiny.equations(jaxpr.jaxpr)]
  names = [equation.primitive.name for equation in equations]
  forward, backward = 2, 2 * 2 - 1 + 4  # that of the images, which nothing needs, in four parts
  assert names.count('conv_general_dilated') == forward + backward + (1 if remat == 'block' else 0)
  products = [  # by kernels of one pixel; of feature maps of 4 x 4 pixels
    equation
    for equation in equations
    if equation.primitive.name == 'dot_general'
    and any(v.aval.shape[:3] == (1, 4, 4) for v in equation.invars)
  ]
  assert len(products) == 3 + 2 * 3 + (3 if remat == 'block' else 0)


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
  'changes, image_size, message',
  [
    ({'stem_width': 48}, (16, 16), 'stem_width is 48; choose a multiple of 32'),
    ({'stem_blocks': (1, 0)}, (16, 16), r'stem_blocks is \(1, 0\); each stage needs'),
    (
      {'patch': 2},
      (24, 16),
      r'\(24, 16\) does not divide into patches of 16 pixels; .* \(16, 16\) or \(32, 16\)',
    ),
  ],
)
def test_sizes_that_do_not_fit_are_refused(changes, image_size, message):
  with pytest.raises(UserError, match=message):
    tiny.build(tiny.options(**STEM | changes), image_size=image_size)
