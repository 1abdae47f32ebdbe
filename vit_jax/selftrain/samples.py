"""The images that were chosen as a prepared data set, by way of WebDataset's shards, which `prepare` reads."""

import io
import json
import pathlib
import shutil
import tarfile
from typing import NamedTuple

import numpy as np
from PIL import Image

from vit_jax.data.decode import Picture
from vit_jax.data.sources.folder_listing import EXTENSIONS
from vit_jax.foundation import cpus, files, signals
from vit_jax.foundation.errors import Preempted, UserError
from vit_jax.prepare import run
from vit_jax.prepare.images import Shrinking
from vit_jax.prepare.selection import Selection
from vit_jax.selftrain.choosing import Choice, Predictions, choose
from vit_jax.selftrain.unlabelled import Unlabelled

DATA_SET = '1.0.0'  # below the workdir, whose name is that of the data set
_SHARD = 4096  # images


class Labels(NamedTuple):
  """What was written."""

  numbers: np.ndarray  # of the images that were chosen
  longest: int  # the most classes that an image has
  unreadable: int  # images that were left out since they cannot be read


def prepare(
  source: Unlabelled,
  predictions: Predictions,
  choice: Choice,
  class_names: tuple[str, ...],
  workdir: pathlib.Path,
) -> Labels:
  """Writes the data set of the chosen images in `workdir`, or goes on where that was interrupted (Preempted).

  The shards that it is made of take as much room again until it is complete. A soft label has all classes with names.

  Raises:
    UserError: no image is chosen, or there is a data set that was chosen otherwise.
  """
  numbers, unreadable = choose(predictions, choice), int((predictions.classes[:, 0] < 0).sum())
  if not len(numbers):
    raise UserError(
      f'Of {len(source):,} images {unreadable:,} cannot be read, and no other reaches '
      f'--confidence={choice.confidence:g}; lower it, or check the images.'
    )
  chosen = f'top{choice.top}-confidence{choice.confidence:g}-per_class{choice.per_class or "all"}'
  shards, data_set = workdir / f'samples-{chosen}', str(workdir / DATA_SET)
  selection = Selection(class_names=class_names)
  options = run.Options(Shrinking(), workers=cpus.usable(), selection=selection)
  if not run.complete_records(str(shards), data_set, options):
    files.make_directories(shards)
    for shard, start in enumerate(range(0, len(numbers), _SHARD)):
      path = shards / f'train-{shard:06}.tar'
      if not path.exists():
        _write(path, source, predictions, numbers[start : start + _SHARD], choice.top)
    try:
      with signals.raise_at_interrupt():  # the processes have to be ended
        run.prepare(str(shards), data_set, options)
    except KeyboardInterrupt:
      raise Preempted('Interrupted.') from None
  shutil.rmtree(shards, ignore_errors=True)
  longest = max(len(_label(predictions, number, choice.top)[0]) for number in numbers)
  return Labels(numbers, longest, unreadable)


def _write(
  path: pathlib.Path, source: Unlabelled, predictions: Predictions, numbers: np.ndarray, top: int
) -> None:
  """Writes a shard: of each image its file, and a .json with its classes and their weights."""
  with files.atomic_write(path, 'wb') as file, tarfile.open(fileobj=file, mode='w') as tar:
    for number in map(int, numbers):
      record = source[number]
      content, kind = _encoded(record.image, record.name)
      labels, weights = _label(predictions, number, top)
      said = json.dumps({'labels': labels, 'weights': weights, 'image': record.name})
      for name, data in ((f'{number:012}{kind}', content), (f'{number:012}.json', said.encode())):
        member = tarfile.TarInfo(name)  # whose time and owner are always the same
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))


def _label(predictions: Predictions, number: int, top: int) -> tuple[list[int], list[float]]:
  """An image's most probable classes and their probabilities, but those that round to nothing; 1 of `top` 1."""
  weights = [round(float(weight), 6) for weight in predictions.probabilities[number, :top]]
  kept = sum(weight > 0 for weight in weights) or 1
  return predictions.classes[number, :kept].tolist(), [1.0] if top == 1 else weights[:kept]


def _encoded(image: bytes | np.ndarray, name: str) -> tuple[bytes, str]:
  """An image's file and the ending of its name; pixels, and files that `prepare` does not know, become a PNG."""
  if isinstance(image, np.ndarray):
    pixels = image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image
    return _png(pixels), '.png'
  try:
    with Image.open(io.BytesIO(image)) as opened:
      kind = f'.{(opened.format or "").lower()}'
  except (OSError, Image.DecompressionBombError) as error:
    raise UserError(f'{name} has changed since it was labelled ({error}); restore it.') from error
  if kind == '.mpo':  # a JPEG and others behind it, as telephones write
    return image, '.jpg'
  if kind in EXTENSIONS:
    return image, kind
  return _png(Picture(image, 3, name).pixels()), '.png'


def _png(pixels: np.ndarray) -> bytes:
  """Encodes uint8 pixels (H, W) or (H, W, 3)."""
  buffer = io.BytesIO()
  Image.fromarray(pixels).save(buffer, 'PNG')
  return buffer.getvalue()
