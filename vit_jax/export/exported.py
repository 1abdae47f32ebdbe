"""An exported model, read again: what compares, measures and serves it."""

import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vit_jax.data.preprocess import pixels_of
from vit_jax.export import libraries
from vit_jax.export.description import Description
from vit_jax.foundation.errors import UserError


class Exported:
  """A model that `vit_jax export` has written.

  Attributes:
    description: what model.json says.
  """

  def __init__(self, folder: str | os.PathLike[str], threads: int | None = None):
    """`threads` of onnxruntime; None: as many as it takes. Raises UserError where the folder is no such model."""
    folder = pathlib.Path(folder).expanduser()
    self.description = Description.read(folder)
    path = folder / self.description.file
    if not path.exists():
      raise UserError(f'{path} is not there; export the model again.')
    self._run = onnx_function(path, threads) if self.description.format == 'onnx' else _stablehlo(path)

  def __call__(self, images: Iterable[Image.Image | np.ndarray]) -> np.ndarray:
    """Images of any size, as `Preprocess` takes them -> the first output: probabilities, float32 (B, K)."""
    description = self.description
    if description.input == 'tensor':
      return self.outputs(description.preprocess(images))[description.outputs[0]]
    rows = [
      self.outputs(pixels_of(image, description.preprocess.channels)[None])[description.outputs[0]]
      for image in images
    ]
    if not rows:
      raise UserError('An exported model takes a list of images, and this one is empty; give at least one.')
    return np.concatenate(rows)

  def outputs(self, batch: np.ndarray) -> dict[str, np.ndarray]:
    """What the model gives, by name, of its own input: bytes of images of one size, or what `preprocess` makes."""
    return dict(zip(self.description.outputs, self._run(batch, self.description.outputs), strict=True))


def read(folder: str | os.PathLike[str], threads: int | None = None) -> Exported:
  """The model of a folder that `vit_jax export` has written; raises UserError where it is none."""
  return Exported(folder, threads)


def onnx_function(path: pathlib.Path, threads: int | None = None) -> Any:
  """What runs an ONNX model in onnxruntime: its input, and names of values -> these values."""
  libraries.check('onnx')
  import onnxruntime

  options = onnxruntime.SessionOptions()
  options.log_severity_level = 3  # errors
  if threads is not None:
    options.intra_op_num_threads = threads
  # Others compute in fewer bits without being asked.
  known = ('CUDAExecutionProvider', 'CPUExecutionProvider')
  providers = [name for name in known if name in onnxruntime.get_available_providers()]
  session = onnxruntime.InferenceSession(str(path), options, providers=providers)

  def run(batch: np.ndarray, names: Sequence[str]) -> Sequence[Any]:
    return session.run(list(names), {'images': batch})

  return run


def _stablehlo(path: pathlib.Path) -> Any:
  libraries.check('stablehlo')
  from vit_jax.export import stablehlo

  call = stablehlo.function(path)

  def run(batch: np.ndarray, names: Sequence[str]) -> list[np.ndarray]:
    results = call(batch)
    return [np.asarray(results[name]) for name in names]

  return run
