"""Frozen features of images: any layer, any pooling, computed over the whole mesh, every example once."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import chex
import jax
import numpy as np
from flax import nnx

from vit_jax.data import on_device
from vit_jax.data.config import DataConfig
from vit_jax.evaluation.base import Params, one_behind
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Model, ModelConfig, Pooling
from vit_jax.parallel import mesh as mesh_lib

# (parameters, batch with 'mask', layer, pool) -> {'features': (B, F), 'label': (B,), 'mask': (B,)}
FeatureStep = Callable[[Params, dict[str, jax.Array], int | None, Pooling | None], dict[str, jax.Array]]


class Features(NamedTuple):
  """Features of the examples of a data set, in its order."""

  values: np.ndarray  # float32 (examples, F)
  labels: np.ndarray  # int32 (examples,)


def check(model: ModelConfig, layer: int | None, pool: Pooling | None, option: str) -> None:
  """Raises UserError, naming the section `option`, for a layer or a pooling that the model does not have."""
  if layer is not None and not -1 <= layer < model.num_layers:
    raise UserError(f'{option}.layer is {layer}; choose a block from 0 to {model.num_layers - 1}, or -1.')
  poolings = ' or '.join(model.poolings)
  if pool is None and not model.classifies_images:
    raise UserError(f"{option}.pool is None, and the model's own pool is 'none'; choose {poolings}.")
  if pool is not None and pool not in model.poolings:
    raise UserError(f'{option}.pool is {pool!r}, which this model does not have; choose {poolings}.')


def make_step(graphdef: nnx.GraphDef, data: DataConfig, mesh: jax.sharding.Mesh) -> FeatureStep:
  """The compiled function from a batch to its features, of which every process has all.

  Layer and pool are those of `FewShotEvaluatorConfig`: with both None the features are the head's input,
  behind the pre-logits layer where the model has one.
  """

  def step(
    params: Params, batch: dict[str, jax.Array], layer: int | None, pool: Pooling | None
  ) -> dict[str, jax.Array]:
    model: Model = nnx.merge(graphdef, params)
    features = model.embeddings(on_device.prepared(batch, data), layer, pool)
    chex.assert_shape(features, (len(batch['label']), None))
    return {'features': features.astype('float32'), 'label': batch['label'], 'mask': batch['mask']}

  return jax.jit(step, static_argnums=(2, 3), out_shardings=mesh_lib.replicated(mesh))


def extract(
  step: FeatureStep,
  params: Params,
  batches: Iterable[dict[str, jax.Array]],
  *,
  layer: int | None,
  pool: Pooling | None,
) -> Features:
  """The features, by a step of `make_step`, of each example once, in order, on every process."""
  return joined(of_batches(step, params, batches, layer=layer, pool=pool))


def of_batches(
  step: FeatureStep,
  params: Params,
  batches: Iterable[dict[str, jax.Array]],
  *,
  layer: int | None,
  pool: Pooling | None,
) -> Iterator[Features]:
  """As `extract`, of each batch by itself."""
  return map(_fetched, one_behind(lambda batch: step(params, batch, layer, pool), batches))


def joined(parts: Iterable[Features]) -> Features:
  """The features of several parts as those of one."""
  values, labels = zip(*parts, strict=True)
  return Features(np.concatenate(values), np.concatenate(labels))


def _fetched(output: dict[str, jax.Array]) -> Features:
  mask = np.asarray(output['mask'])
  return Features(np.asarray(output['features'])[mask], np.asarray(output['label'])[mask])
