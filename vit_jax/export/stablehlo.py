"""A loaded model as StableHLO, with a batch of any size, for CPUs, GPUs and TPUs in one file."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import export as jax_export

from vit_jax.export import inference
from vit_jax.export.description import Precision
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel

PLATFORMS = ('cpu', 'cuda', 'tpu')
_LARGEST_FILE = 2**31 - 2**24  # flatbuffers, in which JAX writes, end at 2 GB


def serialised(model: LoadedModel, outputs: Sequence[str], precision: Precision) -> bytes:
  """The artefact, which `jax.export.deserialize` reads; its `call` takes images and gives the outputs by name.

  Raises UserError for a model that is too large for one file.
  """
  module = inference.for_inference(model, precision)
  size = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(module)))
  if size > _LARGEST_FILE:
    raise UserError(
      f"The model's parameters are {size / 2**30:.1f} GiB in {precision}, and StableHLO holds 2 GiB in a file; take "
      '--dtype=bfloat16, or --format=onnx, which writes them beside the graph.'
    )
  of = inference.function(model, outputs)
  (batch,) = jax_export.symbolic_shape('batch')
  images = jax.ShapeDtypeStruct((batch, *model.preprocess.size, model.preprocess.channels), jnp.float32)
  graphdef, state = nnx.split(module)

  def call(images: jax.Array) -> dict[str, jax.Array]:
    return of(nnx.merge(graphdef, state), images)

  return bytes(jax_export.export(jax.jit(call), platforms=PLATFORMS)(images).serialize())
