"""The evaluator of retrieval: images are found by their captions among all of a split, and captions by their images.

CLIP, arXiv 2103.00020, section 3.1 and table 13 (recall at 1, 5 and 10 of Flickr30k and COCO).
"""

import concurrent.futures
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.evaluation import base
from vit_jax.evaluation import features as features_lib
from vit_jax.evaluation.base import EvaluationContext, Evaluator, EvaluatorConfig, Limited, MetricKind, Params
from vit_jax.foundation.errors import UserError
from vit_jax.models.capabilities import TextTowerOptions
from vit_jax.options import Count
from vit_jax.parallel import mesh as mesh_lib

_AT = (1, 5, 10)
_ROWS = 1024  # texts, or queries, that are computed at a time
_THREADS = 16  # that read captions; more than processors, for on a network they wait


@dataclasses.dataclass(frozen=True)
class RetrievalEvaluatorConfig(EvaluatorConfig):
  """Recall of captions by images and of images by captions, among all of a split."""

  # Largest number of captions of an image that count, its first ones: 5 is how Flickr30k and COCO are published.
  captions: Count = 5

  metrics: ClassVar[Mapping[str, MetricKind]] = {
    # Headlines are printed as shares of images, and recall by captions is a share of captions.
    f'{way}_recall_at_{k}': MetricKind(
      higher_is_better=True, percent=True, headline=(way, k) == ('image_to_text', 1)
    )
    for way in ('image_to_text', 'text_to_image')
    for k in _AT
  }

  def open(self, name: str, source: str, context: EvaluationContext) -> 'RetrievalEvaluator':
    return RetrievalEvaluator(name, self, source, context)


class RetrievalEvaluator(Evaluator):
  """An opened evaluator of type 'retrieval': captions are read once, features are computed each time."""

  def __init__(self, name: str, options: RetrievalEvaluatorConfig, source: str, context: EvaluationContext):
    """As `EvaluatorConfig.open`; UserError also for an image without a caption."""
    # Importing TFDS and OpenCV takes seconds, which `import vit_jax.config` need not.
    from vit_jax.data import sources
    from vit_jax.data.pipeline import EvalPipeline
    from vit_jax.pretrained import captions

    model, texts = context.model, context.objective.texts
    if not isinstance(model, TextTowerOptions) or texts is None:
      raise UserError(
        f'config.evaluators.{name} is of type retrieval, and {context.objective.title} has no texts; its type must '
        "be 'classification' or 'fewshot'."
      )
    split, data = sources.evaluated(source, options.split, context.data, context.trained or context.data)
    records = sources.open_source(source, split, data=data)

    def read(index: int) -> list[str]:
      record = records[index]
      if record.captions is None:
        raise UserError(
          f'config.evaluators.{name} needs captions, and {record.name} has none; give it other data, or the type '
          "'zero_shot'."
        )
      return list(record.captions())[: options.captions]

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
      own = list(pool.map(read, range(len(records))))
    tokens = captions.tokenizer(texts.tokenizer, model)([text for each in own for text in each])
    # Captions of the same tokens are one, which belongs to all of their images.
    self._tokens, numbers = np.unique(tokens, axis=0, return_inverse=True)
    image = np.repeat(np.arange(len(own)), [len(each) for each in own])
    self._pairs = np.unique(np.stack([image, numbers.ravel()], axis=1), axis=0)
    self._name, self._mesh, self.examples = name, context.mesh, len(records)
    self.title = sources.title(source, split)
    self.notes = (
      f'{name}: {len(own):,} images with {len(tokens):,} captions, {len(self._tokens):,} of them different.',
    )
    self._batches = EvalPipeline(
      records,
      context.data,
      crop=options.crop,
      resize=options.resize,
      batch_size=options.batch_size or context.batch_size,
      sharding=mesh_lib.batch_sharding(context.mesh),
    )
    self._of_images = features_lib.make_step(context.graphdef, context.data, context.mesh)
    network = functools.partial(nnx.merge, context.graphdef)
    # Parameters, tokens (K, N) -> features, float32 (K, P), which every process has.
    self._of_texts: Any = jax.jit(
      lambda params, tokens: network(params).text_features(tokens),
      out_shardings=mesh_lib.replicated(context.mesh),
    )

  def run(
    self,
    models: Mapping[str, Params],
    shared: dict[Any, Any],
    report: base.Report | None = None,
    limited: Limited = iter,
  ) -> dict[str, float]:
    result: dict[str, float] = {}
    for suffix, params in models.items():
      images = features_lib.extract(
        self._of_images, params, limited(self._batches), layer=None, pool=None
      ).values
      texts = np.concatenate(
        [np.asarray(self._of_texts(params, part))[:count] for part, count in _parts(self._tokens, self._mesh)]
      )
      ways = {
        'image_to_text': ranks(images, texts, self._pairs, self._mesh),
        'text_to_image': ranks(texts, images, self._pairs[:, ::-1], self._mesh),
      }
      for way, found in ways.items():
        for k in _AT:
          result[f'{self._name}{suffix}/{way}_recall_at_{k}'] = float(np.mean(found < k))
    return result


def ranks(queries: np.ndarray, gallery: np.ndarray, pairs: np.ndarray, mesh: jax.sharding.Mesh) -> np.ndarray:
  """How many of the gallery that are not a query's own are at least as near to it as the nearest of its own.

  What ties with it counts as nearer, so that a model that tells nothing apart finds nothing.

  Args:
    queries, gallery: features, float32 (Q, P) and (G, P), each of length 1.
    pairs: int (pairs, 2), a query and one of its own; each query has at least one.
    mesh: over which queries are split; each device holds the whole gallery.

  Returns:
    int32 (Q,).
  """
  everywhere = mesh_lib.replicated(mesh)
  on_devices = jax.make_array_from_callback(gallery.shape, everywhere, gallery.__getitem__)
  count = jax.jit(_count, out_shardings=everywhere)
  result, first = [], 0
  for part, rows in _parts(queries, mesh):
    own = np.zeros((len(part), len(gallery)), bool)
    query, item = pairs[(pairs[:, 0] >= first) & (pairs[:, 0] < first + rows)].T
    own[query - first, item] = True
    result.append(np.asarray(count(part, on_devices, own))[:rows])
    first += rows
  return np.concatenate(result)


def _count(queries: jax.Array, gallery: jax.Array, own: jax.Array) -> jax.Array:
  scores = jnp.matmul(queries, gallery.T, precision=jax.lax.Precision.HIGHEST)
  nearest = jnp.where(own, scores, -jnp.inf).max(axis=1, keepdims=True)
  return (~own & ~(scores < nearest)).sum(axis=1, dtype=jnp.int32)  # NaN is not less


def _parts(rows: np.ndarray, mesh: jax.sharding.Mesh) -> Iterator[tuple[jax.Array, int]]:
  """The rows in parts of one size, split over the mesh, each with the number of its rows that are not padding."""
  shards, sharding = mesh_lib.batch_shards(mesh), mesh_lib.batch_sharding(mesh)
  size = math.ceil(min(len(rows), _ROWS) / shards) * shards
  for first in range(0, len(rows), size):
    part = rows[first : first + size]
    padding = [(0, size - len(part))] + [(0, 0)] * (rows.ndim - 1)
    whole = np.pad(part, padding)
    yield jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__), len(part)
