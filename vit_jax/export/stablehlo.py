"""A loaded model as StableHLO, with a batch of any size, for CPUs, GPUs and TPUs; its weights lie in a file beside."""

import pathlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx
from jax import export as jax_export

from vit_jax.export import inference
from vit_jax.export.description import Precision
from vit_jax.foundation import pytrees
from vit_jax.loaded_model import LoadedModel

PLATFORMS = ('cpu', 'cuda', 'tpu')


def write(
  model: LoadedModel, outputs: Sequence[str], precision: Precision, path: pathlib.Path
) -> list[pathlib.Path]:
  """Writes the program, which `jax.export.deserialize` reads, and the weights, which safetensors read; both paths.

  The program's `call` takes the weights by their names and images, and gives the outputs by name. Weights are not part
  of the program: its format ends at 2 GB, and its constants would be in memory twice.
  """
  module = inference.for_inference(model, precision)
  of = inference.function(model, outputs)
  graphdef, state = nnx.split(module)
  # A layer that computes in 16 bits rounds its kernel anyway; head and norms compute in float32.
  dtype = jnp.dtype(precision)
  layers = [path for path, part in nnx.iter_modules(module) if getattr(part, 'dtype', None) == dtype]
  kernels = {'/'.join(map(str, (*path, 'kernel', 'value'))) for path in layers}
  weights = {
    name: leaf.astype(dtype) if name in kernels else leaf for name, leaf in pytrees.flatten(state).items()
  }
  (batch,) = jax_export.symbolic_shape('batch')
  images = jax.ShapeDtypeStruct((batch, *model.preprocess.size, model.preprocess.channels), jnp.float32)

  def call(weights: dict[str, jax.Array], images: jax.Array) -> dict[str, jax.Array]:
    given = pytrees.map_with_path(lambda name, leaf: weights[name], state)
    return of(nnx.merge(graphdef, given), images)

  shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), weights)
  program = jax_export.export(jax.jit(call), platforms=PLATFORMS)(shapes, images)
  path.write_bytes(program.serialize())
  safetensors.numpy.save_file(jax.device_get(weights), beside(path))
  return [path, beside(path)]


def beside(path: pathlib.Path) -> pathlib.Path:
  """Where the weights of a program lie."""
  return path.with_name(f'{path.name}.safetensors')


def function(path: pathlib.Path) -> Callable[[np.ndarray], dict[str, jax.Array]]:
  """What `write` wrote, as a function of images."""
  call = jax.jit(jax_export.deserialize(bytearray(path.read_bytes())).call)
  weights = jax.device_put(safetensors.numpy.load_file(beside(path)))
  return lambda images: call(weights, images)
