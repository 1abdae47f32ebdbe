"""Writes an exported model: the file of its format, model.json, and the page for the browser."""

import pathlib
import shutil
from collections.abc import Sequence
from typing import Literal

from vit_jax.export.description import FILE, Description, Input, Precision
from vit_jax.loaded_model import LoadedModel

_PAGE, _INDEX = 'page.html', 'index.html'  # for the browser: its name here, and where it is written


def write(
  model: LoadedModel,
  folder: pathlib.Path,
  *,
  format: Literal['onnx', 'stablehlo'],
  input: Input,
  precision: Precision,
  outputs: Sequence[str],
  source: str,
  license: str | None = None,
) -> int:
  """Writes a model into a folder that exists; the bytes of the model's files. Raises UserError as the formats do.

  An earlier export in the folder is removed first, and model.json is written last: a command that is killed leaves no
  model beside the classes of another. `Description` says what the arguments are.
  """
  _remove_export(folder)
  description = Description(
    format=format,
    file=f'model.{format}',
    input=input,
    outputs=tuple(outputs),
    precision=precision,
    preprocess=model.preprocess,
    classes=model.class_names,
    num_classes=model.num_classes,
    link=model.link,
    architecture=model.config.describe(),
    source=source,
    license=license,
  )
  path = folder / description.file
  if format == 'onnx':
    from vit_jax.export import onnx_export

    written = onnx_export.graph_of(model, outputs, input, precision).save(path, description.metadata())
  else:
    from vit_jax.export import stablehlo

    written = stablehlo.write(model, outputs, precision, path)
  if format == 'onnx' and input == 'images' and outputs[0] == 'probabilities':
    shutil.copyfile(pathlib.Path(__file__).with_name(_PAGE), folder / _INDEX)
  description.write(folder)
  return sum(path.stat().st_size for path in written)


def _remove_export(folder: pathlib.Path) -> None:
  """Removes what an earlier export has written, its model.json first; other files stay."""
  if (folder / FILE).exists():
    written = (*folder.glob('model.onnx*'), *folder.glob('model.stablehlo*'))
    for path in (folder / FILE, folder / _INDEX, *written):
      path.unlink(missing_ok=True)
