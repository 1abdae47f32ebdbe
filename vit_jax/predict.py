"""Classifies images with any checkpoint.

python -m vit_jax.predict --checkpoint=runs/mine photo.jpg photos/
python -m vit_jax.predict --checkpoint=imagenet21k+imagenet2012/ViT-B_16 --format=json photo.jpg
python -m vit_jax.predict --checkpoint=imagenet21k+imagenet2012/ViT-B_16 photo.jpg \\
  --class_names=https://storage.googleapis.com/bit_models/ilsvrc2012_wordnet_lemmas.txt

The checkpoint is what `vit_jax.load` takes; a folder stands for all images below it. The result goes to
stdout: the classes with the highest logits, and their probabilities by softmax, or by sigmoid where the model
was trained so. An image that cannot be read is named on stderr and left out; the exit code is then 2.
"""

import csv
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tqdm
from absl import flags

from vit_jax import cli
from vit_jax.data.image_files import image_files
from vit_jax.foundation import foreign_files
from vit_jax.foundation.errors import UserError

if TYPE_CHECKING:
  from vit_jax.data.preprocess import Preprocess
  from vit_jax.loaded_model import LoadedModel

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint', None, 'What vit_jax.load takes: a path, an address or a name.'
)
_WEIGHTS = cli.define_weights()
_TOP = flags.DEFINE_integer('top', 5, 'Classes for each image.', lower_bound=1)
_FORMAT = flags.DEFINE_enum('format', 'csv', ['csv', 'json'], 'Of the result.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 32, 'Images at a time.', lower_bound=1)
_CLASS_NAMES = flags.DEFINE_string(
  'class_names', None, 'A file with a name a line, for a checkpoint that has none; a path or an address.'
)


class Prediction(NamedTuple):
  """One of the most probable classes of an image."""

  number: int
  name: str | None
  probability: float


Result = tuple[str, list[Prediction]]  # an image's file, and its best classes
Prepared = tuple[str, np.ndarray | Exception]  # an image's file, and the model's input (1, H, W, C)


def main(arguments: Sequence[str]) -> None:
  """Prints the classes of the images."""
  checkpoint = cli.required(_CHECKPOINT)
  if not arguments:
    raise cli.missing_arguments('Name the images to classify, or folders of them, behind the flags')
  paths = image_files(arguments)
  from vit_jax.loading import load
  from vit_jax.parallel import distributed
  from vit_jax.pretrained import class_names

  distributed.skip_absent_tpu()
  model = load(checkpoint, weights=_WEIGHTS.value)
  model.check_classifies(checkpoint)
  given = _CLASS_NAMES.value
  names = model.class_names if given is None else class_names.read(given, model.num_classes)
  batch_size, top = min(_BATCH_SIZE.value or 32, len(paths)), min(_TOP.value or 5, model.num_classes)
  unreadable: list[str] = []
  batches = _batches(paths, model.preprocess, batch_size, unreadable)
  results = _classified(model, batches, names, batch_size, top)
  bar = tqdm.tqdm(results, total=len(paths), unit='image', disable=not sys.stderr.isatty())
  if _FORMAT.value == 'csv':
    _write_csv(bar)
  else:
    _write_json(bar)
  if unreadable:
    raise UserError(
      f'{len(unreadable)} of {len(paths)} images could not be read and are left out; restore or remove them.'
    )


def _batches(
  paths: Sequence[pathlib.Path], preprocess: 'Preprocess', size: int, unreadable: list[str]
) -> Iterator[tuple[list[str], list[np.ndarray]]]:
  """(files, images (1, H, W, C)) of a batch of `size`, prepared while the one before is computed.

  `unreadable` gets the files that cannot be read, each named on stderr.
  """
  from vit_jax.data.decode import Picture
  from vit_jax.data.prefetch import default_threads, map_ahead

  def prepared(path: pathlib.Path) -> Prepared:
    try:
      picture = Picture(
        foreign_files.read_bytes(path, foreign_files.LARGEST_IMAGE), preprocess.channels, str(path)
      )
      return str(path), preprocess([picture.pixels()])
    except (UserError, OSError) as error:
      return str(path), error

  groups = [paths[start : start + size] for start in range(0, len(paths), size)]
  for results in map_ahead(prepared, groups, default_threads(is_remote=False)):
    files, images = [], []
    for file, image in results:
      if isinstance(image, Exception):
        unreadable.append(file)
        print(image, file=sys.stderr)
      else:
        files.append(file)
        images.append(image)
    if files:
      yield files, images


def _classified(
  model: 'LoadedModel',
  batches: Iterable[tuple[list[str], list[np.ndarray]]],
  names: tuple[str, ...] | None,
  batch_size: int,
  top: int,
) -> Iterator[Result]:
  """The most probable classes of each image."""
  import jax

  for files, images in batches:
    # Filled up with black images, so that one shape is compiled.
    full = np.zeros((batch_size, *images[0].shape[1:]), np.float32)
    full[: len(images)] = np.concatenate(images)
    shares, numbers = jax.lax.top_k(model.probabilities(model(full)), top)
    for file, row, best in zip(
      files, np.asarray(shares).tolist(), np.asarray(numbers).tolist(), strict=False
    ):
      predictions = [
        Prediction(number, names[number] if names else None, share)
        for share, number in zip(row, best, strict=True)
      ]
      yield file, predictions


def _write_csv(results: Iterable[Result]) -> None:
  writer = csv.writer(sys.stdout, lineterminator='\n')
  writer.writerow(['image', 'rank', 'class', 'name', 'probability'])
  for file, best in results:
    for rank, prediction in enumerate(best, start=1):
      writer.writerow([file, rank, prediction.number, prediction.name, f'{prediction.probability:.6g}'])


def _write_json(results: Iterable[Result]) -> None:
  """A list, an image a line, each line as soon as it is known."""
  separator = '['
  for file, best in results:
    predictions = [
      {'class': item.number, 'name': item.name, 'probability': item.probability} for item in best
    ]
    print(separator, json.dumps({'image': file, 'predictions': predictions}), sep='\n', end='', flush=True)
    separator = ','
  print('[]' if separator == '[' else '\n]')


if __name__ == '__main__':
  cli.run(main, positional=True)
