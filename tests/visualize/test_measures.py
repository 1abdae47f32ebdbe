"""The numbers of the pictures against NumPy in float64, from a model's parameters on."""

import math

import jax
import numpy as np
import pytest
import tiny
from flax import nnx
from models import numpy_vit

from vit_jax.data.preprocess import Preprocess
from vit_jax.loaded_model import LoadedModel
from vit_jax.visualize import foreground, measures
from vit_jax.visualize.observations import Observer

# Of 12 x 8 pixels, in patches of 4.
GRID, CENTRES = (3, 2), [(row, column) for row in (2, 6, 10) for column in (2, 6)]
CASES = {
  'gap': {'pool': 'gap', 'class_token': True},  # which the head does not read
  'token_and_registers': {'register_tokens': 2},
}


def in_numpy(params, images, model):
  """(L, H, N, N): the attention weights of the first image."""
  seen = []

  def keep(place, layer, weights):
    if place == 'attention_weights':
      seen.append(weights[0])
    return weights

  numpy_vit.forward(params, images, drop=keep, pool=model.pool)
  return np.stack(seen)


def expected_distance(head, first):
  """Mean attention distance of a head, patch by patch; the patches are the tokens from `first` on."""
  means = []
  for i, (top, left) in enumerate(CENTRES):
    given = head[first + i, first:]
    far = [math.hypot(top - y, left - x) for y, x in CENTRES]
    means.append(sum(weight * pixels for weight, pixels in zip(given, far)) / sum(given))
  return sum(means) / len(means)


def expected_rollout(weights):
  product = np.eye(weights.shape[-1])
  for block in weights:
    product = (0.5 * sum(block) / len(block) + 0.5 * np.eye(len(product))) @ product
  return product


@pytest.mark.parametrize('case', CASES)
def test_observation_equals_the_same_computed_in_numpy(case):
  model = tiny.options(depth=3, **CASES[case])
  graphdef, params = tiny.build(model)
  params['blocks']['attention']['query']['kernel'] *= 4  # far from equal weights
  loaded = LoadedModel(nnx.merge(graphdef, params), Preprocess.from_range((12, 8), -1, 1), None)
  pixels = np.random.default_rng(2).integers(0, 256, (12, 8, 3), dtype=np.uint8)
  with jax.default_matmul_precision('highest'):
    seen = Observer(loaded).look(pixels)

  images = pixels[None] / 127.5 - 1
  weights = in_numpy(params, images, model)
  first = weights.shape[-1] - 6
  assert first == {'gap': 1, 'token_and_registers': 3}[case]
  expected = [[expected_distance(head, first) for head in block] for block in weights]
  np.testing.assert_allclose(seen.distances, expected, rtol=1e-4)
  assert np.std(expected) > 0.1

  rows = slice(0, 1) if case == 'token_and_registers' else slice(first, None)
  flow = expected_rollout(weights)
  np.testing.assert_allclose(flow.sum(axis=1), 1)
  np.testing.assert_allclose(seen.rollout.ravel(), flow[rows, first:].mean(axis=0), rtol=1e-4)
  maps = weights[:, :, rows, first:].mean(axis=2).reshape(3, 4, *GRID)
  np.testing.assert_allclose(seen.heads, maps, atol=1e-5)
  assert seen.attending == ('the class token' if rows.stop == 1 else 'the mean of all patches')
  logits = numpy_vit.forward(params, images, pool=model.pool)['logits'][0]
  best = np.argsort(-logits)[:3]
  shares = np.exp(logits[best]) / np.exp(logits).sum()
  assert [name for name, _ in seen.predictions] == [f'class {number}' for number in best]
  np.testing.assert_allclose([share for _, share in seen.predictions], shares, rtol=1e-3)
  np.testing.assert_allclose(seen.photograph, pixels / 255, atol=1e-6)


@pytest.mark.parametrize('shape', [(4, 4, 3, 100), (2, 2, 1, 9)])
def test_principal_filters_are_the_singular_vectors_of_the_centred_filters(shape):
  kernel = np.random.default_rng(0).standard_normal(shape) * np.linspace(1, 3, shape[-1])
  components, shares = measures.principal_filters(kernel, 10)
  filters = np.stack([kernel[..., number].ravel() for number in range(shape[-1])])
  _, singular, directions = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)
  count = min(10, math.prod(shape[:3]))
  assert components.shape == (count, *shape[:3])
  cosines = np.einsum('ij,ij->i', components.reshape(count, -1), directions[:count])
  np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-6)
  np.testing.assert_allclose(shares, (singular**2 / (singular**2).sum())[:count])
  assert (components.max(axis=(1, 2, 3)) == np.abs(components).max(axis=(1, 2, 3))).all()


def test_position_similarity_is_the_cosine_of_the_patches_embeddings():
  positions = np.random.default_rng(0).standard_normal((7, 5))  # of a class token too
  similarity = measures.position_similarity(positions, GRID)
  one, other = positions[1 + 1], positions[1 + 4]  # row 0, column 1; row 2, column 0
  expected = one @ other / math.sqrt(one @ one * (other @ other))
  assert similarity.shape == (3, 2, 3, 2)
  np.testing.assert_allclose(
    [similarity[0, 1, 2, 0], similarity[2, 0, 0, 1], similarity[2, 1, 2, 1]], [expected] * 2 + [1]
  )


def test_token_that_differs_has_its_own_colour_and_the_block_before_fixes_the_signs():
  tokens = np.ones((3, 2, 8))
  tokens[0, 1] = np.arange(8)
  colours, components = measures.token_colours(tokens)
  assert colours.min() >= 0 and colours.max() <= 1
  others = np.delete(colours.reshape(6, 3), 1, axis=0)
  np.testing.assert_allclose(others, others[:1].repeat(5, axis=0), atol=1e-6)
  assert np.abs(colours[0, 1] - colours[0, 0]).max() == 1
  turned, _ = measures.token_colours(-tokens, components)
  np.testing.assert_allclose(turned, colours, atol=1e-6)
  same, _ = measures.token_colours(np.ones((3, 2, 8)))
  np.testing.assert_array_equal(same, 0.5)


def test_foreground_is_what_borders_are_not_and_like_patches_of_two_photographs_have_like_colours():
  rng = np.random.default_rng(0)
  features = 0.01 * rng.standard_normal((2, 6, 7, 8))
  features[..., 0] += 3  # the background
  body, head = np.eye(8)[1] * 5, np.eye(8)[1] * 5 + np.eye(8)[2]
  for image, top in enumerate((1, 2)):
    features[image, top : top + 3, 2:5] = body + 0.01 * rng.standard_normal((3, 3, 8))
    features[image, top, 2:5] = head + 0.01 * rng.standard_normal((3, 8))
  colours = foreground.colours(features)
  expected = np.zeros((2, 6, 7), bool)
  expected[0, 1:4, 2:5] = expected[1, 2:5, 2:5] = True
  np.testing.assert_array_equal(~np.isnan(colours[..., 0]), expected)
  heads, bodies = colours[[0, 1], [1, 2], 2:5, 0], colours[[0, 1], [2, 3], 2:5, 0]
  assert heads.std() < 0.1 and bodies.std() < 0.1 and abs(heads.mean() - bodies.mean()) > 0.8
  assert np.isfinite(foreground.colours(features[:1, :1, :1])).sum() in (0, 3)  # one patch
