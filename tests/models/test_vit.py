"""The forward pass against NumPy; against what the original code computed: tests/pretrained/test_released.py."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx

from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture

CASES = {  # beside those of all layers, and of test_position.py
  'gap_with_class_token': {'pool': 'gap', 'class_token': True},
  'map': {'pool': 'map', 'pre_logits_size': 24},
  'none': {'pool': 'none', 'pre_logits_size': 24},
  'erf': {'activation': 'gelu', 'pool': 'map'},
  'epsilon': {'norm_epsilon': 0.01, 'pool': 'map'},
  'registers_gap_with_class_token': {'register_tokens': 2, 'pool': 'gap', 'class_token': True},
  'registers_map': {'register_tokens': 1, 'pool': 'map'},
  'distillation': {'distillation_token': True},
  'distillation_registers_relative': {
    'distillation_token': True,
    'register_tokens': 2,
    'position': 'relative',
  },
  'token_gap': {'pool': 'token_gap'},
  'locality': {'mlp': 'local', 'register_tokens': 2, 'activation': 'gelu'},
  'qk_norm': {'qk_norm': True, 'norm_epsilon': 0.01},
  'qk_norm_rotary': {'qk_norm': True, 'position': 'rotary', 'pool': 'map'},
  'qk_norm_relative_query': {'qk_norm': True, 'position': 'relative_query'},
  'axial_relative': {'axial': True, 'pool': 'gap', 'position': 'relative'},
  'axial_relative_query': {'axial': True, 'pool': 'map', 'position': 'relative_query'},
  'axial_rotary': {'axial': True, 'pool': 'gap', 'position': 'rotary'},
  'axial_locality_map': {'axial': True, 'mlp': 'local', 'pool': 'map'},
  'eva02': {
    **{'mlp': 'swiglu', 'activation': 'silu', 'mlp_sub_norm': True, 'attention_sub_norm': True},
    **{'position': 'learned+rotary_eva', 'rotary_grid': 2, 'pool': 'gap', 'class_token': True},
    'final_norm': 'pooled',
  },
  'clip': {'activation': 'quick_gelu', 'pre_norm': True, 'patch_bias': False, 'norm_epsilon': 1e-5},
  'dinov3': {'position': 'rotary_dinov3', 'register_tokens': 4, 'layer_scale': 0.1},
  'perception_encoder': {'position': 'learned+rotary_pe', 'rotary_grid': 4, 'pre_norm': True},
  'rotary_mixed': {'position': 'rotary_mixed', 'qk_norm': True},
  'rms_norm': {'norm': 'rms_norm', 'mlp': 'swiglu', 'activation': 'gelu', 'pool': 'map', 'qk_norm': True},
  'relu_sub_norm_pooled': {
    'activation': 'relu',
    'mlp_sub_norm': True,
    'final_norm': 'pooled',
    'pool': 'token_gap',
  },
  'post_norm': {'block': 'post_norm', 'layer_scale': 0.1},
  'parallel': {'block': 'parallel', 'layer_scale': 0.1, 'qk_norm': True},
  'parallel_pairs': {'block': 'parallel_pairs', 'layer_scale': 0.1},
  'gap_patches': {'pool': 'gap_patches', 'class_token': True, 'register_tokens': 1, 'patch_norm': True},
  'max_patches': {'pool': 'max_patches', 'register_tokens': 2},
  'avgmax_patches': {'pool': 'avgmax_patches', 'class_token': True},
  'map_patches': {'pool': 'map_patches', 'register_tokens': 2, 'pool_heads': 2, 'pool_mlp_dim': 20},
  'no_final_norm': {'final_norm': 'none'},
  'registers_token_gap': {'register_tokens': 2, 'pool': 'token_gap', 'pre_logits_size': 24},
}


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_forward_equals_numpy(case):
  model = tiny.options(**CASES[case])
  graphdef, params = tiny.build(model)
  x = tiny.images()
  options = {'pool': model.pool, 'activation': model.activation, 'epsilon': model.norm_epsilon}
  options['rotary'] = model.position.removeprefix('learned+') if 'rotary' in model.position else ''
  options |= {'rotary_grid': model.rotary_grid, 'post_norm': model.block == 'post_norm'}
  expected = numpy_vit.forward(params, x, **options)['logits']
  if case in ('erf', 'epsilon'):  # which are well seen with these parameters
    assert abs(numpy_vit.forward(params, x, pool=model.pool)['logits'] - expected).max() > 1e-4
  logits = tiny.apply(graphdef, params, x)
  chex.assert_type(logits, jnp.float32)
  chex.assert_shape(logits, (3, 7 - 1, 5) if case == 'none' else (3, 5))
  np.testing.assert_allclose(logits, expected, atol=1e-5)
  assert expected.std() > 0.1


@pytest.mark.slow
def test_logits_of_labels_and_of_teachers_equal_numpy():
  """Of a model with one head, both are its logits; poolings leave the distillation token out."""
  x = tiny.images()
  for options in ({'distillation_token': True}, {}):
    graphdef, params = tiny.build(tiny.options(**options))
    vit = nnx.merge(graphdef, params)
    with jax.default_matmul_precision('highest'):
      of_labels, of_teachers = vit.distillation_logits(x)
      gap = vit.pool(vit.features(x), 'gap')
    expected = numpy_vit.forward(params, x)
    np.testing.assert_allclose(of_labels, expected.get('logits_of_labels', expected['logits']), atol=1e-5)
    np.testing.assert_allclose(of_teachers, expected.get('logits_of_teachers', expected['logits']), atol=1e-5)
    mean = np.delete(expected['tokens'], slice(1, 1 + len(options)), axis=1).mean(axis=1)
    np.testing.assert_allclose(gap, mean, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('unroll', [False, True])
def test_features_of_every_layer_equal_numpy(unroll):
  graphdef, params = tiny.build(tiny.options(depth=3, register_tokens=2, layer_scale=0.1, unroll=unroll))
  x = tiny.images()
  expected = numpy_vit.forward(params, x)
  vit = nnx.merge(graphdef, params)
  with jax.default_matmul_precision('highest'):
    np.testing.assert_allclose(vit.embed(x), expected['embedded'], atol=1e-5)
    for layer, tokens in enumerate(expected['blocks']):
      np.testing.assert_allclose(vit.features(x, layer=layer), tokens, atol=1e-5)
    for last in (None, -1):
      np.testing.assert_allclose(vit.features(x, layer=last), expected['tokens'], atol=1e-5)
  for layer in (3, -2):
    with pytest.raises(ValueError, match='from 0 to 2'):
      vit.features(x, layer=layer)


@pytest.mark.parametrize('image_size, channels', [((4, 20), 1), ((8, 8), 4)])
def test_any_grid_and_channels_equal_numpy(image_size, channels):
  graphdef, params = tiny.build(image_size=image_size, channels=channels)
  x = tiny.images(image_size=image_size, channels=channels)
  expected = numpy_vit.forward(params, x)['logits']
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected, atol=1e-5)


STEM = {'stem_blocks': (1,), 'stem_width': 32, 'patch': 2}


@pytest.mark.parametrize(
  ('method', 'changes'),
  [*((name, {}) for name in ('__call__', 'embed', 'attention', 'hidden_states')), ('features', STEM)],
)
def test_images_that_the_patches_do_not_divide_are_refused(method, changes):
  options = tiny.options(**changes)
  size = 2 * options.patch_pixels
  network = nnx.merge(*tiny.build(options, image_size=(size, size)))
  odd = tiny.images(image_size=(size + 1, size))
  with pytest.raises(
    UserError, match=rf'^The image size \({size + 1}, {size}\) does not divide into patches'
  ):
    getattr(network, method)(odd)


def test_images_are_cut_where_the_model_says_so():
  graphdef, params = tiny.build(tiny.options(cut_images=True), image_size=(14, 11))
  x = tiny.images(image_size=(14, 11))
  expected = tiny.apply(graphdef, params, x[:, :12, :8])
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected, atol=1e-6)


def test_epsilon_of_the_norms_equals_numpy():
  """With small inputs of the first norm; a wrong epsilon is hardly seen on ordinary ones."""
  graphdef, params = tiny.build()
  for name in ('patch_embedding', 'class_token', 'position_embedding'):
    params[name] = jax.tree.map(lambda value: 3e-3 * value, params[name])
  x = tiny.images()
  expected = numpy_vit.forward(params, x)['logits']
  assert abs(numpy_vit.forward(params, x, epsilon=1e-5)['logits'] - expected).max() > 1e-3
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected, atol=1e-5)


def test_norm_of_tokens_far_from_zero_keeps_its_digits():
  """A mean much larger than the deviation must not cost the variance its digits."""
  graphdef, params = tiny.build()
  params['position_embedding'] = params['position_embedding'] + 100
  x = tiny.images()
  expected = numpy_vit.forward(params, x)['logits']
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected, atol=3e-4)


def test_parameters_have_the_documented_paths():
  """The names that checkpoints, sharding rules and regexes of the config rely on."""
  options = {'class_token': True, 'pre_logits_size': 24, 'register_tokens': 3, 'layer_scale': 0.1}
  _, params = tiny.build(tiny.options(pool='map', **options))
  attention = {f'{part}/{leaf}' for part in ('query', 'key', 'value', 'out') for leaf in ('kernel', 'bias')}
  mlp = {f'{part}/{leaf}' for part in ('dense_in', 'dense_out') for leaf in ('kernel', 'bias')}
  expected = {'class_token', 'position_embedding', 'map_pool/probe'}
  expected |= {'register_tokens', 'blocks/attention_scale', 'blocks/mlp_scale'}
  expected |= {f'{part}/attention/{leaf}' for part in ('blocks', 'map_pool') for leaf in attention}
  expected |= {f'{part}/mlp/{leaf}' for part in ('blocks', 'map_pool') for leaf in mlp}
  expected |= {
    f'{part}/{leaf}' for part in ('patch_embedding', 'pre_logits', 'head') for leaf in ('kernel', 'bias')
  }
  norms = ('blocks/attention_norm', 'blocks/mlp_norm', 'norm', 'map_pool/norm')
  expected |= {f'{part}/{leaf}' for part in norms for leaf in ('scale', 'bias')}
  shapes = {path: leaf.shape for path, leaf in pytrees.flatten(params).items()}
  assert set(shapes) == expected
  assert shapes['patch_embedding/kernel'] == (4, 4, 3, 32)
  assert shapes['position_embedding'] == (1, 7, 32)
  assert shapes['register_tokens'] == (1, 3, 32)
  assert shapes['blocks/attention_scale'] == (2, 32)
  assert shapes['blocks/attention/query/kernel'] == (2, 32, 4, 8)
  assert shapes['blocks/attention/out/kernel'] == (2, 4, 8, 32)
  assert shapes['blocks/mlp/dense_in/kernel'] == (2, 32, 48)


@pytest.mark.slow
def test_initial_parameters_have_the_papers_distributions():
  extra = {'register_tokens': 5, 'layer_scale': 1e-5}
  model = tiny.options(
    width=64, mlp_dim=256, pool='map', class_token=True, pre_logits_size=96, head_bias=-10.0, **extra
  )

  def initial():
    vit = Architecture(model, (64, 64), 3, 7).build(nnx.Rngs(0))
    return nnx.to_pure_dict(nnx.state(vit)), vit(jnp.ones((2, 64, 64, 3)))

  params, logits = jax.jit(initial)()
  for part in (params['blocks'], params['map_pool']):
    for name in ('query', 'key', 'value', 'out'):
      _is_uniform(part['attention'][name]['kernel'], (6 / (64 + 64)) ** 0.5)
      assert not part['attention'][name]['bias'].any()
    for name in ('dense_in', 'dense_out'):
      _is_uniform(part['mlp'][name]['kernel'], (6 / (64 + 256)) ** 0.5)
      _has_deviation(part['mlp'][name]['bias'], 1e-6, 0.3)
  _has_deviation(params['patch_embedding']['kernel'], (4 * 4 * 3) ** -0.5)
  _has_deviation(params['pre_logits']['kernel'], 64**-0.5)
  _has_deviation(params['position_embedding'], 0.02)
  _has_deviation(params['register_tokens'], 1e-6, 0.2)  # as in DINOv2
  for scale in (params['blocks']['attention_scale'], params['blocks']['mlp_scale']):
    np.testing.assert_array_equal(scale, np.full((2, 64), 1e-5, np.float32))
  for zero in (params['class_token'], params['head']['kernel'], params['patch_embedding']['bias']):
    assert not zero.any()
  np.testing.assert_array_equal(params['head']['bias'], np.full(7, -10.0))
  np.testing.assert_array_equal(logits, np.full((2, 7), -10.0))

  query = params['blocks']['attention']['query']['kernel']
  assert len({float(layer.sum()) for layer in query}) == 2  # each block has numbers of its own
  assert not np.array_equal(query, params['blocks']['attention']['key']['kernel'])


@pytest.mark.nightly(but='towers')
@pytest.mark.slow
@pytest.mark.parametrize(
  'make',
  [functools.partial(tiny.options, pool='map'), tiny.mae, tiny.two_towers],
  ids=['vit', 'mae', 'towers'],
)
def test_kernel_deviation_is_that_of_all_kernels_in_blocks_and_of_no_other_parameter(make):
  def initial(**options):
    network = Architecture(make(**options), (64, 64), 3, 7).build(nnx.Rngs(0))
    return pytrees.flatten(nnx.to_pure_dict(nnx.state(network)))

  papers, params = jax.jit(initial)(), jax.jit(functools.partial(initial, kernel_deviation=0.02))()
  for path, values in params.items():
    if 'blocks/' in path and path.endswith('/kernel'):
      _has_deviation(values, 0.02)
      assert abs(values).max() > 3 * 0.02  # normal, not uniform
    else:
      np.testing.assert_array_equal(values, papers[path])


def _is_uniform(x, bound):
  assert 0.98 * bound < float(abs(x).max()) <= bound
  _has_deviation(x, bound / 3**0.5)


def _has_deviation(x, deviation, tolerance=0.05):
  assert float(x.std()) == pytest.approx(deviation, rel=tolerance)
  assert abs(float(x.mean())) < 0.3 * deviation


@pytest.mark.parametrize(
  'image_size, nearest',
  [((30, 32), '(16, 32) or (32, 32)'), ((9, 50), '(16, 48) or (16, 64)')],
)
def test_image_size_that_does_not_divide_names_the_nearest(image_size, nearest):
  with pytest.raises(UserError) as error:
    tiny.build(tiny.options(patch=16), image_size=image_size)
  message = str(error.value)
  assert str(image_size) in message and '16 pixels' in message and nearest in message
