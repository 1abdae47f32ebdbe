"""Static quantisation of an exported ONNX model to 8 bits (int8_layers.py), and its accuracy before and after."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np
import onnx

from vit_jax.data.decode import Picture
from vit_jax.export import int8_layers
from vit_jax.export.description import FILE
from vit_jax.export.exported import Exported, onnx_function
from vit_jax.foundation import class_matching, foreign_files

_CALIBRATED, _EVALUATED = 64, 500  # images, at most


def quantise(folder: pathlib.Path, files: Sequence[pathlib.Path], name: str) -> str:
  """Quantises the ONNX model of a folder by image files, which the result calls `name`: sizes and accuracies.

  Accuracies are given where the model classifies and images lie in folders called like classes. They are of images by
  which it was not calibrated.

  Raises UserError where an image cannot be read.
  """
  calibrated = _spread(files, _CALIBRATED)
  rest = sorted(set(files) - set(calibrated))
  before = Exported(folder)
  labelled = _labelled(before, _spread(rest, _EVALUATED)) if rest else []
  accuracies = [_accuracy(before, labelled)]
  path = folder / before.description.file
  sizes = [_size(folder, path)]
  _write(before, calibrated, path)
  dataclasses.replace(before.description, precision='int8').write(folder)
  del before
  after = Exported(folder)
  accuracies.append(_accuracy(after, labelled))
  sizes.append(_size(folder, path))
  text = f'Quantised by {len(calibrated)} images of {name}: {sizes[0]:.1f} MB before, {sizes[1]:.1f} MB after'
  if labelled:
    text += '; accuracy of {} other images {:.2%} before, {:.2%} after'.format(len(labelled), *accuracies)
  return f'{text}.'


def _spread(files: Sequence[pathlib.Path], most: int) -> list[pathlib.Path]:
  """So many of the files at most, evenly spread over all."""
  numbers = np.linspace(0, len(files) - 1, min(most, len(files))).round().astype(int)
  return [files[number] for number in numbers]


def _labelled(model: Exported, files: Sequence[pathlib.Path]) -> list[tuple[pathlib.Path, int]]:
  """The files in folders that are called like classes of a model, with the class's number."""
  names = model.description.classes
  if names is None or model.description.outputs[0] != 'probabilities':
    return []
  numbers = class_matching.by_name(names, [file.parent.name for file in files])
  return [
    (file, int(number)) for file, number in zip(files, numbers, strict=True) if number != class_matching.NEW
  ]


def _accuracy(model: Exported, labelled: Sequence[tuple[pathlib.Path, int]]) -> float:
  """The share of images whose most probable class is their own; nan of none."""
  right = [model([_pixels(model, file)]).argmax() == number for file, number in labelled]
  return float(np.mean(right)) if right else float('nan')


def _pixels(model: Exported, file: pathlib.Path) -> np.ndarray:
  """uint8 (H, W, C) of an image file, as `vit_jax predict` decodes it; UserError where it cannot be decoded."""
  content = foreign_files.read_bytes(file, foreign_files.LARGEST_IMAGE)
  return Picture(content, model.description.preprocess.channels, str(file)).pixels()


def _size(folder: pathlib.Path, path: pathlib.Path) -> float:
  """Megabytes of a model's files."""
  return sum(file.stat().st_size for file in folder.glob(f'{path.name}*')) / 1e6


def _write(model: Exported, files: Sequence[pathlib.Path], path: pathlib.Path) -> None:
  """Replaces a model of float32 by the quantised one, and removes its model.json."""
  seen = _seen(model, files, path)
  graph = onnx.load(path)
  int8_layers.quantise(graph, seen)
  metadata = {entry.key: entry.value for entry in graph.metadata_props} | {'precision': 'int8'}
  onnx.helper.set_model_props(graph, metadata)
  path.with_name(FILE).unlink()
  path.with_name(f'{path.name}.data').unlink(missing_ok=True)
  onnx.save(graph, path)


def _seen(model: Exported, files: Sequence[pathlib.Path], path: pathlib.Path) -> dict[str, int8_layers.Seen]:
  """What the inputs of the layers have for images."""
  graph = onnx.load(path, load_external_data=False)
  names = int8_layers.inputs(graph)
  for name in names:
    graph.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
  beside = path.with_name(f'{path.name}.seen')  # where parameters that lie in a file of their own are found
  try:
    onnx.save(graph, beside)
    run = onnx_function(beside)
  finally:
    beside.unlink(missing_ok=True)
  images = []
  for file in files:
    pixels, tensor = _pixels(model, file), model.description.input == 'tensor'
    values = run(model.description.preprocess([pixels]) if tensor else pixels[None], names)
    images.append([int8_layers.Seen.of(value) for value in values])
  return {name: int8_layers.Seen.joined([image[i] for image in images]) for i, name in enumerate(names)}
