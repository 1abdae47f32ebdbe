"""Token merging against a twin in NumPy and float64 that follows the paper (arXiv 2210.09461), token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models import token_merging
from vit_jax.models.token_weights import TokenWeights


def numpy_merged(z, weights, metric, number, leading):
  """Section 3, 'bipartite soft matching', of one image: {token numbers that are merged: (mean, weight)}."""
  others = range(leading, len(z))
  first, second = [i for i in others if i % 2 == 0], [i for i in others if i % 2 == 1]
  unit = metric / np.linalg.norm(metric, axis=1, keepdims=True)
  edges = []
  for i in first:
    like = max(second, key=lambda j: unit[i] @ unit[j])
    edges.append((unit[i] @ unit[like], i, like))
  groups = {i: {i} for i in range(len(z))}
  for _, i, j in sorted(edges, reverse=True)[:number]:
    groups[j] |= groups.pop(i)
  means = {}
  for members in groups.values():
    rows = sorted(members)
    total = weights[rows].sum()
    means[tuple(rows)] = ((z[rows] * weights[rows, None]).sum(axis=0) / total, total)
  return means


@pytest.mark.parametrize('leading', [0, 1, 2, 5])
@pytest.mark.parametrize('number', [1, 4, 99])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_the_most_similar_patches_are_merged(leading, number, dtype):
  rng = np.random.default_rng(number)
  z, metric = rng.normal(size=(2, 3, 18, 7))
  if dtype == 'bfloat16':
    metric += 8  # similar keys, whose cosines are near 1
  metric = jnp.asarray(metric, dtype)
  weights = rng.integers(1, 4, (3, 18)).astype(float)
  found, sizes = token_merging.merged(
    jnp.asarray(z, jnp.float32),
    TokenWeights(jnp.asarray(weights, jnp.float32)),
    metric,
    number,
    leading,
  )
  number, metric = min(number, (18 - leading) // 2), np.asarray(metric, np.float64)
  assert found.shape == (3, 18 - number, 7)
  for image in range(3):
    expected = numpy_merged(z[image], weights[image], metric[image], number, leading)
    np.testing.assert_allclose(found[image, :leading], z[image, :leading], rtol=1e-6)
    rows = sorted(np.concatenate([[total], mean]).tolist() for mean, total in expected.values())
    ours = sorted(np.concatenate([sizes.values[image][:, None], found[image]], axis=1).tolist())
    np.testing.assert_allclose(ours, rows, atol=1e-5)


def test_attention_counts_a_merged_patch_as_so_many_and_logits_of_equal_patches_stay():
  """An image of equal patches without positions: all merging is exact."""
  for pool in ('token_gap', 'map'):
    options = {'position': 'none', 'pool': pool}
    graphdef, params = tiny.build(tiny.options(**options), image_size=(16, 16))
    merging, _ = tiny.build(tiny.options(token_merging=3, **options), image_size=(16, 16))
    logits = jax.jit(
      lambda graphdef, images, keys, params=params: nnx.merge(graphdef, params)(images, keys=keys),
      static_argnums=0,
    )
    images = jnp.tile(jax.random.normal(jax.random.key(0), (2, 4, 4, 3)), (1, 4, 4, 1))
    np.testing.assert_allclose(logits(graphdef, images, None), logits(merging, images, None), atol=1e-5)
    other = jax.random.normal(jax.random.key(1), (2, 16, 16, 3))
    whole = np.asarray(logits(graphdef, other, None))
    assert np.abs(whole - logits(merging, other, None)).max() > 1e-4
    keys = jax.random.split(jax.random.key(2), 2)  # in training nothing is merged
    np.testing.assert_allclose(logits(merging, other, keys), whole, atol=1e-5)


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    ({'position': 'rotary'}, "position 'rotary', of which attention knows"),
    ({'block': 'parallel'}, "block 'parallel', whose MLP does not come after attention"),
    ({'axial': True, 'pool': 'gap'}, 'axial, which needs the whole grid'),
  ],
)
def test_blocks_that_cannot_merge_are_refused(options, said):
  with pytest.raises(UserError, match=said):
    tiny.options(token_merging=2, **options).check('config.model')
