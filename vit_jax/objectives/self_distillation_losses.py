"""The losses of self-distillation, and what they are computed from, by the equations of DINOv2 and its code."""

import functools
import math

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

STUDENT_TEMPERATURE = 0.1
_EPSILON = 1e-8  # of KoLeo's distances
_ATTEMPTS = 30  # to put a block of masked patches somewhere
_LEAST_BLOCK = 4  # patches
_ASPECTS = (math.log(0.3), -math.log(0.3))  # of a block's height to its width

_dot = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def crop_loss(students: jax.Array, targets: jax.Array) -> jax.Array:
  """DINO's loss: the mean cross-entropy of all pairs of a student's crop and another, large one of the teacher.

  DINO's equation 3, DINOv2's `DINOLoss`.

  Args:
    students: scores, float32 (B, S, K), of both large crops and then of the small ones.
    targets: probabilities, float32 (B, 2, K), of both large crops.
  """
  crops = students.shape[1]
  other = 1 - jnp.eye(crops, 2)
  return (_cross_entropies(students[:, :, None], targets[:, None]).mean(axis=0) * other).sum() / other.sum()


def patch_loss(students: jax.Array, targets: jax.Array, chosen: jax.Array) -> jax.Array:
  """iBOT's loss: the mean over crops, of which half have no masked patches, of the mean over those of a crop.

  iBOT's equation 2, DINOv2's `iBOTPatchLoss.forward_masked`.

  Args:
    students: scores, float32 (B, M, K), of patches of which one of the large crops of an image has masked some.
    targets: probabilities, float32 (B, M, K), of the same patches, which the teacher has seen.
    chosen: bool (B, M): those that are masked.
  """
  sums = jnp.where(chosen, _cross_entropies(students, targets), 0).sum(axis=1)
  return (sums / jnp.maximum(chosen.sum(axis=1), 1)).mean() / 2


def koleo_loss(features: jax.Array) -> jax.Array:
  """KoLeo: minus the mean logarithm of the distance of each of B features (B, D), scaled to 1, to its nearest other.

  DINOv2, section 4; its `KoLeoLoss`.
  """
  x = features.astype(jnp.float32)
  x /= jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), _EPSILON)
  cosines = jnp.where(jnp.eye(len(x), dtype=bool), -1.0, _dot(x, x.T))
  nearest = x[jax.lax.stop_gradient(cosines).argmax(axis=1)]
  distances = jnp.linalg.norm(x - nearest + _EPSILON, axis=-1)
  return -jnp.log(distances + _EPSILON).mean()


def sinkhorn(
  scores: jax.Array, temperature: jax.typing.ArrayLike, counted: jax.Array | None = None
) -> jax.Array:
  """Probabilities by which every prototype gets the same weight in the batch (SwAV, arXiv 2006.09882, appendix A).

  DINOv2's `sinkhorn_knopp_teacher`.

  Args:
    scores: float32 (N, K).
    temperature: of their softmax.
    counted: bool (N,): the rows that take part; others become zeros. None: all.
  """
  q = jnp.exp((scores - scores.max()) / temperature)
  rows = jnp.ones(len(q), bool) if counted is None else counted
  q = jnp.where(rows[:, None], q, 0)
  for _ in range(3):  # prototypes, and then rows
    q /= jnp.maximum(q.sum(axis=0, keepdims=True), jnp.finfo(q.dtype).tiny)
    q /= jnp.where(rows, q.sum(axis=1), 1)[:, None]
  return q


def entropy_and_information(targets: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Of probabilities (N, K), in nats: their mean entropy, and by how much that of their mean is more.

  The latter is what a target tells of its image: 0 where all are the same, be they of one prototype or of all.
  """
  entropy = -xlogy(targets, targets).sum(axis=-1).mean()
  mean = targets.mean(axis=0)
  return entropy, -xlogy(mean, mean).sum() - entropy


def effective_rank(features: jax.Array) -> jax.Array:
  """In how many directions features (N, D) spread, 1 to D: (sum of variances)² / (sum of their squares)."""
  x = features.astype(jnp.float32)
  x -= x.mean(axis=0)
  products = x.T @ x
  return jnp.square(jnp.trace(products)) / jnp.maximum(jnp.square(products).sum(), 1e-30)


def hidden_patches(key: jax.Array, grid: tuple[int, int], shares: tuple[float, float]) -> jax.Array:
  """Bool (2, N): the patches of an image's two large crops that are masked: a share in `shares` of one of them.

  They are blocks of random place, size and aspect (BEiT, arXiv 2106.08254, algorithm 1; DINOv2's `MaskingGenerator`),
  put there one after the other until the share is reached or no more of them fit.
  """
  which, share, blocks = jax.random.split(key, 3)
  rows, columns = grid
  wanted = (rows * columns * jax.random.uniform(share, minval=shares[0], maxval=shares[1])).astype(jnp.int32)

  def put(number: jax.Array, masked: jax.Array) -> jax.Array:
    area, aspect, top, left = jax.random.uniform(jax.random.fold_in(blocks, number), (4,))
    missing = wanted - masked.sum()
    area = _LEAST_BLOCK + (missing - _LEAST_BLOCK) * area
    aspect = jnp.exp(_ASPECTS[0] + (_ASPECTS[1] - _ASPECTS[0]) * aspect)
    height, width = jnp.round(jnp.sqrt(area * aspect)), jnp.round(jnp.sqrt(area / aspect))
    block = _inside(top, height, rows)[:, None] & _inside(left, width, columns)
    new = (block & ~masked).sum()
    fits = (height < rows) & (width < columns) & (new > 0) & (new <= missing)
    return jnp.where(fits, masked | block, masked)

  masked = jax.lax.fori_loop(0, _ATTEMPTS, put, jnp.zeros(grid, bool)).reshape(1, -1)
  first = jax.random.bernoulli(which)
  return jnp.concatenate([masked & first, masked & ~first])


def _cross_entropies(scores: jax.Array, targets: jax.Array) -> jax.Array:
  """float32 (…,): the cross-entropies of a student's scores (…, K) by probabilities (…, K)."""
  return -(targets * jax.nn.log_softmax(scores / STUDENT_TEMPERATURE)).sum(axis=-1)


def _inside(place: jax.Array, size: jax.Array, length: int) -> jax.Array:
  """Bool (length,): an interval of so many positions, whose place is from 0, at the begin, to 1, at the end."""
  first = jnp.floor(place * (length - size + 1))
  positions = jnp.arange(length)
  return (positions >= first) & (positions < first + size)
