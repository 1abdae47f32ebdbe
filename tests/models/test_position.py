"""Positions against NumPy and the formula; on another grid, against what loading a checkpoint makes of it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx

import vit_jax
from vit_jax import config as c
from vit_jax.checkpoint.manager import Manager
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.parts import positions
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS
from vit_jax.training import initialization
from vit_jax.training.run import Dataset, Run

LEARNED = ['learned2d', 'relative', 'relative_query', 'relative_query_1d']

TOKENS = positions.Tokens((3, 4), others=0, class_token=False, width=16, heads=2, resize='bilinear')


def sincos(rows, columns, width):
  """Element by element, in float64."""
  quarter = width // 4
  result = np.zeros((1, rows * columns, width))
  for row in range(rows):
    for column in range(columns):
      for i in range(quarter):
        frequency = 1 / 10_000 ** (i / (quarter - 1))
        waves = [np.sin(column * frequency), np.cos(column * frequency)]
        waves += [np.sin(row * frequency), np.cos(row * frequency)]
        result[0, row * columns + column, i::quarter] = waves
  return result


def test_fixed_positions_equal_the_formula():
  np.testing.assert_allclose(positions.sincos2d((3, 5), 24), sincos(3, 5, 24), atol=1e-6)
  with_token = positions.sincos2d((3, 5), 24, class_token=True)
  assert with_token.dtype == np.float32 and not with_token[:, 0].any()
  np.testing.assert_array_equal(with_token[:, 1:], positions.sincos2d((3, 5), 24))
  with pytest.raises(UserError, match='width 30 does not divide by 4'):
    positions.sincos2d((3, 5), 30)


@pytest.mark.parametrize('pool', ['gap', 'token'])
def test_logits_with_fixed_positions_equal_numpy(pool):
  graphdef, params = tiny.build(tiny.options(pool=pool, position='sincos2d'))
  assert 'position_embedding' not in params
  x, fixed = tiny.images(), sincos(3, 2, 32)
  if pool == 'token':
    fixed = np.concatenate([np.zeros((1, 1, 32)), fixed], axis=1)
  expected = numpy_vit.forward(params | {'position_embedding': fixed}, x, pool=pool)['logits']
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected, atol=1e-5)


def save(workdir, model, image_size=(12, 8)):
  """Writes a run of a model of random parameters: what it computes."""
  config = c.Config(model=model, data=c.DataConfig(image_size=image_size, num_classes=5))
  graphdef, params = tiny.build(model, image_size=image_size)
  meta = {'config': c.as_json(config), 'class_names': [], 'examples': 9}
  with Manager(workdir / 'checkpoints', config.checkpoint) as manager:
    manager.save(1, {'params': params}, meta)
  return lambda x: tiny.apply(graphdef, params, x)


@pytest.mark.slow
def test_a_run_with_fixed_positions_loads_as_one_that_learned_them(tmp_path):
  run = save(tmp_path / 'run', tiny.options(position='sincos2d', pool='token'))
  x = tiny.images()
  loaded = vit_jax.load(tmp_path / 'run')
  assert 'position_embedding' in pytrees.flatten(nnx.to_pure_dict(nnx.state(loaded.module)))
  np.testing.assert_allclose(loaded(x), run(x), atol=1e-5)
  larger = vit_jax.load(tmp_path / 'run', image_size=(24, 16)).module
  chex.assert_shape(larger.position_embedding[...], (1, 25, 32))


@pytest.mark.nightly(but='learned$|rotary')
@pytest.mark.slow
@pytest.mark.parametrize('kind', ['none', 'learned', *LEARNED, 'rotary'])
def test_a_run_loaded_for_another_size_computes_what_the_run_does(tmp_path, kind):
  """With the tables of the run's own grid (NumPy's resize) it is what the run is for such images (JAX's)."""
  run = save(tmp_path / 'run', tiny.options(position=kind, register_tokens=1))
  assert formats.architecture(tmp_path / 'run').model.position == kind
  for image_size in ((12, 8), (8, 24)):
    loaded = vit_jax.load(tmp_path / 'run', image_size=image_size, position_resize='bilinear')
    assert loaded.module.grid == (image_size[0] // 4, image_size[1] // 4)
    x = tiny.images(image_size=image_size)
    np.testing.assert_allclose(tiny.apply(*nnx.split(loaded.module), x), run(x), atol=1e-5)


def test_tables_keep_their_middle_and_their_slope():
  """On a grid twice as fine the same offset of the image is found at twice the patches."""
  layer = positions.Offsets(2, TOKENS, rngs=nnx.Rngs(0))
  rows, columns = np.mgrid[-2:3, -3:4].astype(np.float32)
  layer.patches[...] = jnp.asarray(np.stack([rows, columns]))
  fine = np.asarray(layer((6, 8))).reshape(2, 6, 8, 6, 8)
  here, there = np.indices((6, 8)), np.indices((6, 8))
  apart = here[:, :, :, None, None] - there[:, None, None]
  inside = (abs(apart[0]) <= 4) & (abs(apart[1]) <= 6)
  np.testing.assert_allclose(fine[0][inside], apart[0][inside] * 5 / 11, atol=1e-6)
  np.testing.assert_allclose(fine[1][inside], apart[1][inside] * 7 / 15, atol=1e-6)


def test_formats_refuse_positions_they_have_no_place_for(tmp_path):
  save(tmp_path / 'run', tiny.options(position='learned2d'))
  with pytest.raises(UserError, match="has no place for position 'learned2d'"):
    FORMATS['npz']().write(formats.read(tmp_path / 'run'), tmp_path / 'x.npz')


@pytest.mark.parametrize(('kind', 'ours'), [('none', 'rotary'), ('relative_query', 'relative_query_1d')])
def test_a_checkpoint_with_other_positions_is_refused(tmp_path, kind, ours):
  save(tmp_path / 'run', tiny.options(position=kind))
  config = c.Config(
    model=tiny.options(position=ours),
    data=c.DataConfig(image_size=(12, 8), num_classes=5),
    init=c.InitConfig(checkpoint=str(tmp_path / 'run')),
    batch_size=8,
  )
  run = Run(config, Dataset(80, num_classes=5))
  with pytest.raises(UserError, match=f"trained with position '{kind}', and config.model.position is"):
    initialization.read_initial(config, run.architecture, run.dataset.class_names)


@pytest.mark.slow
@pytest.mark.parametrize('options', [{'register_tokens': 2}, {'pool': 'gap'}])
@pytest.mark.parametrize('kind', ['none', *LEARNED, 'rotary'])
def test_logits_and_attention_equal_numpy(kind, options):
  """On a grid that is no square, with class token and registers, and of patches alone."""
  model = tiny.options(position=kind, **options)
  graphdef, params = tiny.build(model)
  params['blocks']['attention']['query']['kernel'] *= 4
  x, weights = tiny.images(), []

  def look(place, layer, values):
    if place == 'attention_weights':
      weights.append(values)
    return values

  expected = numpy_vit.forward(
    params, x, pool=model.pool, rotary='rotary' if kind == 'rotary' else '', drop=look
  )['logits']
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected, atol=1e-5)
  attention = jax.jit(lambda params: nnx.merge(graphdef, params).attention(x))
  with jax.default_matmul_precision('highest'):
    np.testing.assert_allclose(attention(params), np.stack(weights), atol=1e-5)
  assert (nnx.merge(graphdef, params).positions((12, 8)) is None) == (kind != 'learned2d')


def test_rotary_turns_each_pair_of_a_patch_by_its_column_and_row_and_no_other_token():
  """Pairs of channels as complex numbers, in float64."""
  rotary = positions.POSITIONS['rotary'].in_attention(TOKENS, nnx.Rngs(0))  # heads of 8 channels
  x = np.random.default_rng(0).standard_normal((2, 3 + 12, 2, 8)).astype(np.float32)
  turned = np.asarray(rotary.rotate(x, (3, 4)))
  np.testing.assert_array_equal(turned[:, :3], x[:, :3])
  pairs, found = (each[:, 3:, :, :4] + 1j * each[:, 3:, :, 4:] for each in (x.astype(np.float64), turned))
  for patch in range(12):
    row, column = divmod(patch, 4)
    angles = np.array([column, column / 10, row, row / 10])
    np.testing.assert_allclose(found[:, patch], pairs[:, patch] * np.exp(1j * angles), atol=1e-5)


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    ({'position': 'learned2d', 'width': 35, 'heads': 5}, 'width 35 does not divide by 2'),
    ({'position': 'rotary', 'width': 40}, 'heads of 10 channels'),
  ],
)
def test_widths_that_positions_do_not_divide_are_refused(options, said):
  with pytest.raises(UserError, match=said):
    tiny.build(tiny.options(**options))


def test_places_that_do_not_move_refuse_limits():
  config = c.Config(model=tiny.options(position='rotary', rotary_moves=(0.0, 1.0, 2.0)))
  with pytest.raises(UserError, match="rotary_moves goes with position 'rotary_dinov3'"):
    c.from_config_dict(c.as_json(config))


def test_kernels_without_a_bias_refuse_relative_positions():
  config = c.Config(model=tiny.options(position='relative', attention='splash'))
  with pytest.raises(UserError, match=r"config\.model\.position 'relative' does; choose 'auto' or 'xla'"):
    c.from_config_dict(c.as_json(config))
