"""Frozen features of images: any layer, any pooling, computed over the whole mesh, every example once."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from vit_jax import config
from vit_jax.data import on_device
from vit_jax.data.config import DataConfig
from vit_jax.errors import UserError
from vit_jax.models.variants import has_class_token, resolve
from vit_jax.parallel import mesh as mesh_lib

# (parameters, batch with 'mask', layer, pool) -> {'features': (B, F), 'label': (B,), 'mask': (B,)}
FeatureStep = Callable[[dict[str, Any], dict[str, jax.Array], int | None, str | None], dict[str, jax.Array]]


class Features(NamedTuple):
  """Of the examples of a data set, in its order."""

  values: np.ndarray  # float32 (examples, F)
  labels: np.ndarray  # int32 (examples,)


@dataclasses.dataclass(frozen=True)
class Spec:
  """All that the features of a model depend on: those of equal specs are the same."""

  source: str
  split: str
  records: bytes | None  # a digest of which records of the split; None: all
  data: DataConfig
  crop: str
  resize: int | None
  layer: int | None
  pool: str | None


def check(model: config.Model, layer: int | None, pool: str | None, option: str) -> None:
  """Raises UserError for a layer or a pooling that the model has not; `option` is what they are set with."""
  sizes = resolve(model)
  if layer is not None and not -1 <= layer < sizes.depth:
    raise UserError(f'{option}.layer is {layer}; choose a block from 0 to {sizes.depth - 1}, or -1.')
  ways = ['gap']
  if sizes.kind == 'vit':
    ways += ['token', 'token_gap'] * has_class_token(model) + ['map'] * (model.pool == 'map')
  if pool is None and model.pool == 'none':
    raise UserError(f"{option}.pool is None, and the model's own pool is 'none'; choose {' or '.join(ways)}.")
  if pool is not None and pool not in ways:
    raise UserError(f'{option}.pool is {pool!r}, which this model cannot; choose {" or ".join(ways)}.')


def make_step(graphdef: nnx.GraphDef, data: DataConfig, mesh: jax.sharding.Mesh) -> FeatureStep:
  """The compiled function from a batch to its features, which all processes have whole.

  Layer and pool are as in config.FewShot: layer None is what the head reads, with the representation layer
  where the model has one.
  """

  def step(params, batch, layer, pool):
    model = nnx.merge(graphdef, params)
    tokens = model.features(on_device.prepare(batch['image'], data), layer)
    features = model.pool(tokens, pool)
    if layer is None and pool is None:
      features = model.represent(features)
    return {'features': features.astype('float32'), 'label': batch['label'], 'mask': batch['mask']}

  return jax.jit(step, static_argnums=(2, 3), out_shardings=mesh_lib.replicated(mesh))


def extract(
  step: FeatureStep,
  params: dict[str, Any],
  batches: Iterable[dict[str, jax.Array]],
  *,
  layer: int | None,
  pool: str | None,
) -> Features:
  """The features of each example once, in order, on every process.

  Args:
    step: of `make_step`.
    params: the model's.
    batches: of an `EvalPipeline`.
    layer: see `make_step`.
    pool: see `make_step`.
  """
  parts: list[Features] = []
  pending = None
  for batch in batches:  # one batch is computed while the one before is fetched
    output = step(params, batch, layer, pool)
    if pending is not None:
      parts.append(_fetched(pending))
    pending = output
  if pending is not None:
    parts.append(_fetched(pending))
  return Features(*map(np.concatenate, zip(*parts, strict=True)))


def _fetched(output: dict[str, jax.Array]) -> Features:
  mask = np.asarray(output['mask'])
  return Features(np.asarray(output['features'])[mask], np.asarray(output['label'])[mask])
