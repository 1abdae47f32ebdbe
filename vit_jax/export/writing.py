"""Writes an exported model: the file of its format, model.json, and the page for the browser."""

import pathlib
import shutil
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from vit_jax.export.description import FILE, Description, Input, Precision
from vit_jax.loaded_model import LoadedModel

_PAGE = 'page.html'  # for the browser, where it is called:
_INDEX = 'index.html'


class Asked(NamedTuple):
  """What is to be written of a model."""

  format: Literal['onnx', 'stablehlo']
  input: Input
  precision: Precision
  outputs: Sequence[str]
  source: str  # the checkpoint, as it was named
  license: str | None = None


def write(model: LoadedModel, asked: Asked, folder: pathlib.Path) -> int:
  """Writes a model into a folder that exists; the bytes of the model's files. Raises UserError as the formats do.

  An earlier export in the folder is removed first, and model.json is written last: a command that is killed leaves no
  model beside the classes of another.
  """
  _remove_export(folder)
  description = Description(
    format=asked.format,
    file=f'model.{asked.format}',
    input=asked.input,
    outputs=tuple(asked.outputs),
    precision=asked.precision,
    preprocess=model.preprocess,
    classes=model.class_names,
    num_classes=model.num_classes,
    link=model.link,
    architecture=model.config.describe(),
    source=asked.source,
    license=asked.license,
  )
  written = _WRITERS[asked.format](model, description, folder / description.file)
  if asked.format == 'onnx' and asked.input == 'images' and asked.outputs[0] == 'probabilities':
    shutil.copyfile(pathlib.Path(__file__).with_name(_PAGE), folder / _INDEX)
  description.write(folder)
  return sum(path.stat().st_size for path in written)


def _remove_export(folder: pathlib.Path) -> None:
  """Removes what an earlier export has written, its model.json first; other files stay."""
  if (folder / FILE).exists():
    written = (*folder.glob('model.onnx*'), *folder.glob('model.stablehlo*'))
    for path in (folder / FILE, folder / _INDEX, *written):
      path.unlink(missing_ok=True)


def _onnx(model: LoadedModel, description: Description, path: pathlib.Path) -> list[pathlib.Path]:
  from vit_jax.export import onnx_export

  graph = onnx_export.graph_of(model, description.outputs, description.input, description.precision)
  return graph.save(path, description.metadata())


def _stablehlo(model: LoadedModel, description: Description, path: pathlib.Path) -> list[pathlib.Path]:
  from vit_jax.export import stablehlo

  return stablehlo.write(model, description.outputs, description.precision, path)


_WRITERS: dict[str, Any] = {'onnx': _onnx, 'stablehlo': _stablehlo}
