"""A loaded model as StableHLO, with a batch of any size, for CPUs, GPUs and TPUs in one file."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import export as jax_export

from vit_jax.export import inference
from vit_jax.export.description import Precision
from vit_jax.loaded_model import LoadedModel

PLATFORMS = ('cpu', 'cuda', 'tpu')


def serialised(model: LoadedModel, outputs: Sequence[str], precision: Precision) -> bytes:
  """The artefact, which `jax.export.deserialize` reads; its `call` takes images and gives the outputs by name."""
  module = inference.for_inference(model, precision)
  of = inference.function(model, outputs)
  (batch,) = jax_export.symbolic_shape('batch')
  images = jax.ShapeDtypeStruct((batch, *model.preprocess.size, model.preprocess.channels), jnp.float32)
  graphdef, state = nnx.split(module)

  def call(images: jax.Array) -> dict[str, jax.Array]:
    return of(nnx.merge(graphdef, state), images)

  return bytes(jax_export.export(jax.jit(call), platforms=PLATFORMS)(images).serialize())
