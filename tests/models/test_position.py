"""Fixed positions against the formula; of another grid, against what loading a checkpoint makes of them."""

import jax.numpy as jnp
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx

import vit_jax
from vit_jax import config as c
from vit_jax.checkpoint import positions, tree
from vit_jax.checkpoint.manager import Manager
from vit_jax.errors import UserError
from vit_jax.models import position


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


def test_fixed_positions():
  np.testing.assert_allclose(position.sincos2d((3, 5), 24), sincos(3, 5, 24), atol=1e-6)
  with_token = position.sincos2d((3, 5), 24, class_token=True)
  assert with_token.dtype == np.float32 and not with_token[:, 0].any()
  np.testing.assert_array_equal(with_token[:, 1:], position.sincos2d((3, 5), 24))
  with pytest.raises(UserError, match='width 30 does not divide by 4'):
    position.sincos2d((3, 5), 30)


@pytest.mark.parametrize('pool', ['gap', 'token'])
def test_a_model_with_fixed_positions(pool):
  graphdef, params = tiny.build(tiny.options(pool=pool, position='sincos2d'))
  assert 'position_embedding' not in params
  x, fixed = tiny.images(), sincos(3, 2, 32)
  if pool == 'token':
    fixed = np.concatenate([np.zeros((1, 1, 32)), fixed], axis=1)
  expected = numpy_vit.forward(params | {'position_embedding': fixed}, x, pool=pool)['logits']
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected, atol=1e-5)


@pytest.mark.parametrize('options', [{'pool': 'token'}, {'pool': 'gap', 'register_tokens': 1}])
@pytest.mark.parametrize(('image_size', 'new'), [((16, 24), (4, 6)), ((24, 40), (6, 10)), ((8, 12), (2, 3))])
def test_images_of_another_size(options, image_size, new):
  """As the model of that size whose positions were resized when it was loaded."""
  old, token = (4, 6), options['pool'] == 'token'
  graphdef, params = tiny.build(tiny.options(**options), image_size=(16, 24))
  resized = positions.resize(
    np.asarray(params['position_embedding']),
    old,
    new,
    old_class_token=token,
    new_class_token=token,
    method='bilinear',
  )
  x = tiny.images(image_size=image_size)
  other, _ = tiny.build(tiny.options(**options), image_size=image_size)
  expected = tiny.apply(other, params | {'position_embedding': jnp.asarray(resized)}, x)
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected, atol=1e-5)


def test_a_run_with_fixed_positions_loads_as_one_that_learned_them(tmp_path):
  config = c.Config(
    model=tiny.options(position='sincos2d', pool='token'), data=c.Data(image_size=(12, 8), num_classes=5)
  )
  graphdef, params = tiny.build(config.model)
  meta = {'config': c.as_json(config), 'class_names': [], 'examples': 9}
  with Manager(tmp_path / 'run/checkpoints', config.checkpoint) as manager:
    manager.save(1, {'params': params}, meta)
  x = tiny.images()
  loaded = vit_jax.load(tmp_path / 'run')
  assert 'position_embedding' in tree.flatten(nnx.to_pure_dict(nnx.state(loaded)))
  np.testing.assert_allclose(loaded(x), tiny.apply(graphdef, params, x), atol=1e-5)
  assert vit_jax.load(tmp_path / 'run', image_size=(24, 16)).position_embedding.shape == (1, 25, 32)
