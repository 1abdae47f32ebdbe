"""Images of any shape: their positions, their padding, and what cannot take them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from vit_jax import config as c
from vit_jax.data import geometry
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.naflex import Patches
from vit_jax.loaded_model import LoadedModel
from vit_jax.models import naflex, position_resize, token_weights
from vit_jax.models.position_resize import PositionResize

GRIDS = [(3, 5), (1, 15), (4, 2), (7, 1)]
METHODS: list[PositionResize] = ['linear', 'bilinear', 'bilinear_antialias', 'bicubic', 'bicubic_antialias']


@pytest.mark.parametrize('method', METHODS)
def test_positions_of_each_image_are_those_of_its_grid(method):
  table = np.random.default_rng(0).normal(size=(192, 6)).astype(np.float32)
  grids = [*GRIDS, (13, 19), (7, 36)]
  found = jax.jit(naflex.positions, static_argnums=(1, 3, 4))(
    jnp.asarray(table)[None], (16, 12), jnp.array(grids), 252, method
  )
  for grid, rows in zip(grids, np.asarray(found), strict=True):
    expected = position_resize.resize(table.astype(np.float64), (16, 12), grid, method)
    np.testing.assert_allclose(rows[: len(expected)], expected, atol=1e-6)


@pytest.mark.parametrize('pool', ['gap', 'token_gap', 'map', 'avgmax_patches', 'map_patches'])
def test_padding_changes_no_logit_and_a_batch_is_its_images_one_by_one(pool):
  """Padding of other pixels and of several lengths; the logits are those of the image as it is."""
  options = tiny.options(pool=pool, register_tokens=2, class_token=True, depth=1)
  model = jax.jit(nnx.merge(*tiny.build(options)))
  rng = np.random.default_rng(0)
  images = [rng.normal(size=(1, 4 * h, 4 * w, 3)).astype(np.float32) for h, w in GRIDS[:2]]
  alone = np.concatenate([model(jnp.asarray(image)) for image in images])
  for most in (15, 40):
    columns = rng.normal(size=(2, most * 4, 4, 3)).astype(np.float32)
    for column, image, (rows, across) in zip(columns, images, GRIDS[:2], strict=True):
      column[: rows * across * 4] = geometry.column(image[0], 4, rows * across)
    logits = model(Patches(jnp.asarray(columns), jnp.array(GRIDS[:2])))
    assert np.abs(np.asarray(logits) - alone).max() < 1e-5


def test_loaded_model_leaves_padding_out_of_what_it_pools():
  """Each way of pooling a block's tokens beside those of the image by itself, which has no padding."""
  options = tiny.options(pool='map', register_tokens=2, class_token=True)
  preprocess = Preprocess((12, 20), mean=(0.0,), std=(1.0,), max_patches=40, patch=4)
  model = LoadedModel(nnx.merge(*tiny.build(options)), preprocess, None)
  image = np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)
  alone = image[None].astype(np.float32) / 255
  column = np.full((1, 160, 4, 3), 9, np.float32)
  column[0, :60] = geometry.column(alone[0], 4, 15)
  padded = Patches(column, np.array([[3, 5]]))
  tokens = np.asarray(model.features(alone, 0), np.float64)
  assert model.features(padded, 0).shape == (1, 43, 32)
  for how, expected in {'gap': np.delete(tokens, [1, 2], axis=1).mean(axis=1), 'token': tokens[:, 0]}.items():
    np.testing.assert_allclose(model.embeddings(padded, 0, how), expected, atol=1e-5)
  np.testing.assert_allclose(model.embeddings(padded), model.embeddings(alone), atol=1e-5)
  with pytest.raises(UserError, match=r'cannot tell padding from patches.*write model\.embeddings'):
    model.pool(model.features(padded))
  with pytest.raises(UserError, match="how is 'leading', and this model pools by"):
    model.embeddings(padded, 0, 'leading')


@pytest.mark.parametrize('tokens', [257, 729, 1023])
def test_a_mean_of_weighted_tokens_in_bfloat16_is_not_scaled(tokens):
  """In bfloat16 729 weights of 1 would sum to 728."""
  z = (jax.random.normal(jax.random.key(0), (2, tokens, 256)) + 3).astype(jnp.bfloat16)
  found = token_weights.mean(z, token_weights.TokenWeights(jnp.ones((2, tokens))))
  expected = np.asarray(z, np.float64).mean(axis=1)
  assert found.dtype == jnp.bfloat16
  assert abs((np.asarray(found, np.float64) / expected - 1).mean()) < 4e-4


def test_a_gradient_of_padding_is_zero():
  model = nnx.merge(*tiny.build(tiny.options(pool='map')))
  pixels = jax.random.normal(jax.random.key(0), (2, 40, 4, 3))
  grids = jnp.array([[2, 3], [1, 7]])
  gradient = jax.jit(jax.grad(lambda pixels: model(Patches(pixels, grids)).var()))(pixels)
  assert not np.asarray(gradient[0, 24:]).any() and not np.asarray(gradient[1, 28:]).any()
  assert (np.abs(gradient[0, :24]).max(axis=(1, 2)) > 0).all()


def test_a_column_of_patches_is_its_image():
  image = np.random.default_rng(0).integers(0, 256, (48, 80, 3), np.uint8)
  prepared = Preprocess((64, 64), mean=(0.0,), std=(1 / 255,), max_patches=15, patch=16)([image])
  again = geometry.picture(prepared.pixels[0], prepared.grids[0])
  assert prepared.grids.tolist() == [[3, 5]] and np.array_equal(again, image.astype(np.float32))


@pytest.mark.parametrize(
  ('data', 'model', 'said'),
  [
    ({}, {'position': 'rotary'}, "has position 'rotary'; choose 'learned'"),
    ({}, {'patch_dropout': 0.5}, 'the model has patch_dropout'),
    ({}, {'token_merging': 2}, 'the model has token_merging'),
    ({}, {'patch_sizes': (2, 4)}, 'for patches of one size; leave config.model.patch_sizes out'),
    ({'patch': 8}, {}, 'data.patch is 8 pixels, and the model has patches of 4; set it to 4'),
    ({'mixup': 0.2}, {}, 'data.mixup for images of one size'),
    ({'crop': 'random'}, {}, "choose crop 'inception' or 'resize'"),
    ({}, None, 'for images of any shape, which an MLP-Mixer does not take'),
  ],
)
def test_what_needs_images_of_one_size_is_refused(data, model, said):
  options = tiny.mixer() if model is None else tiny.options(**model)
  config = c.Config(model=options, data=c.DataConfig(max_patches=(16,), **{'patch': 4, **data}))
  with pytest.raises(UserError, match=said):
    c.from_config_dict(c.as_json(config))
