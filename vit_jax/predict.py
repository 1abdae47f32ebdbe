"""Classifies images with any checkpoint.

vit_jax predict --checkpoint=runs/mine photo.jpg photos/
vit_jax predict --checkpoint=imagenet21k+imagenet2012/ViT-B_16 --format=json photo.jpg
vit_jax predict --checkpoint=imagenet21k+imagenet2012/ViT-B_16 photo.jpg \\
  --class_names=https://storage.googleapis.com/bit_models/ilsvrc2012_wordnet_lemmas.txt
vit_jax predict --checkpoint=/path/to/clip --classes='a photo of a dog, a photo of a cat' photo.jpg

The checkpoint is what `vit_jax.load` takes; a folder stands for all images below it. The result goes to
stdout: the classes with the highest logits, and their probabilities by softmax, or by sigmoid where the model
was trained so. An image that cannot be read is named on stderr and left out; the exit code is then 2. With
--threshold stderr ends with the share of images whose best class has less.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from absl import flags

from vit_jax import cli
from vit_jax.data.image_files import image_files
from vit_jax.foundation import foreign_files

if TYPE_CHECKING:
  from vit_jax.data.model_inputs import Inputs
  from vit_jax.loaded_model import LoadedModel

_CHECKPOINT = cli.define_checkpoint()
_WEIGHTS = cli.define_weights()
_TOP = flags.DEFINE_integer('top', 5, 'Classes for each image.', lower_bound=1)
_FORMAT = flags.DEFINE_enum('format', 'csv', ['csv', 'json'], 'Of the result.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 32, 'Images at a time.', lower_bound=1)
_CLASS_NAMES = cli.define_class_names()
_CLASSES = cli.define_classes()
_THRESHOLD = flags.DEFINE_float(
  'threshold', None, 'Say of how many images the best class has less.', lower_bound=0, upper_bound=1
)
_TTA = cli.define_tta()


class Prediction(NamedTuple):
  """One of the most probable classes of an image."""

  number: int
  name: str | None
  probability: float


Result = tuple[str, list[Prediction]]  # an image's file, and its best classes


def main(arguments: Sequence[str]) -> None:
  """Prints the classes of the images."""
  checkpoint = cli.required(_CHECKPOINT)
  if not arguments:
    raise cli.missing_arguments('Name the images to classify, or folders of them, behind the flags')
  paths = image_files(arguments)
  from vit_jax.data.model_inputs import ModelInputs
  from vit_jax.data.sources.base import Record
  from vit_jax.foundation import compilation_cache
  from vit_jax.loading import load
  from vit_jax.pretrained import class_names

  def read(number: int) -> Record:
    content = foreign_files.read_bytes(paths[number], foreign_files.LARGEST_IMAGE)
    return Record(content, -1, str(paths[number]))

  compilation_cache.enable()
  model = load(checkpoint, weights=_WEIGHTS.value, classes=_CLASSES.value)
  model.check_classifies(checkpoint)
  given = _CLASS_NAMES.value
  names = model.class_names if given is None else class_names.read(given, model.num_classes)
  inputs = ModelInputs(read, len(paths), model.preprocess, batch_size=_BATCH_SIZE.value or 32)
  shares: list[float] = []
  results = _classified(model, inputs, names, shares)
  if _FORMAT.value == 'csv':
    _write_csv(results)
  else:
    _write_json(results)
  if _THRESHOLD.value is not None and shares:
    print(_below(shares, _THRESHOLD.value), file=sys.stderr)
  inputs.check()


def _classified(
  model: 'LoadedModel', batches: Iterable['Inputs'], names: tuple[str, ...] | None, highest: list[float]
) -> Iterator[Result]:
  """The most probable classes of each image; `highest` gets the largest probability of each."""
  import jax

  top = min(_TOP.value or 5, model.num_classes)
  for numbers, records, images in batches:
    found = jax.lax.top_k(model.probabilities(model(images, tta=bool(_TTA.value))), top)
    rows, classes = (np.asarray(each)[: len(numbers)].tolist() for each in found)
    highest += [row[0] for row in rows]
    for record, row, best in zip(records, rows, classes, strict=True):
      predictions = [
        Prediction(number, names[number] if names else None, share)
        for share, number in zip(row, best, strict=True)
      ]
      yield record.name, predictions


def _below(shares: Sequence[float], threshold: float) -> str:
  """'12 of 500 images (2.4%) …': those whose best class has less than a threshold."""
  count = sum(share < threshold for share in shares)
  return (
    f'{count} of {len(shares)} images ({count / len(shares):.1%}) have no class of a probability of {threshold:g} '
    'or more.'
  )


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
