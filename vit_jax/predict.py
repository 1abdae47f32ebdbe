"""Classifies images with any checkpoint.

python -m vit_jax.predict --checkpoint=runs/mine photo.jpg photos/
python -m vit_jax.predict --checkpoint=imagenet21k+imagenet2012/ViT-B_16 --format=json photo.jpg
python -m vit_jax.predict --checkpoint=imagenet21k+imagenet2012/ViT-B_16 photo.jpg \\
  --class_names=https://storage.googleapis.com/bit_models/ilsvrc2012_wordnet_lemmas.txt

The checkpoint is what `vit_jax.load` takes; a folder stands for all images below it. The result is on
stdout: the classes of the highest logits, and their share in the softmax. An image that cannot be read is
named on stderr and left out, and the exit code is 2 then.
"""

import concurrent.futures
import csv
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tqdm
from absl import flags

from vit_jax import cli
from vit_jax.data.image_files import image_files
from vit_jax.errors import UserError

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint', None, 'What vit_jax.load takes: a path, an address or a name.'
)
_TOP = flags.DEFINE_integer('top', 5, 'Classes for each image.', lower_bound=1)
_FORMAT = flags.DEFINE_enum('format', 'csv', ['csv', 'json'], 'Of the result.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 32, 'Images at a time.', lower_bound=1)
_CLASS_NAMES = flags.DEFINE_string(
  'class_names', None, 'A file with a name a line, for a checkpoint that has none; a path or an address.'
)

# image, then a (class, name or None, probability) for each of the best
Result = tuple[str, list[tuple[int, str | None, float]]]


def main(arguments: Sequence[str]) -> None:
  if not arguments:
    raise UserError('Name the images to classify, or folders of them, behind the flags.')
  paths = image_files(arguments)
  from vit_jax.loading import load  # starts JAX
  from vit_jax.parallel import distributed
  from vit_jax.pretrained import class_names

  distributed.skip_absent_tpu()
  model = load(_CHECKPOINT.value)
  num_classes = model.head.kernel.shape[-1]
  if not num_classes:
    raise UserError(f'{_CHECKPOINT.value} has no head and cannot classify; fine-tune it first.')
  given = _CLASS_NAMES.value
  names = model.class_names if given is None else class_names.read(given, num_classes)
  unreadable: list[pathlib.Path] = []
  batches = _batches(paths, model.preprocess, unreadable)
  results = _classified(model, batches, names, min(_TOP.value, num_classes))
  bar = tqdm.tqdm(results, total=len(paths), unit='image', disable=not sys.stderr.isatty())
  (_write_csv if _FORMAT.value == 'csv' else _write_json)(bar)
  if unreadable:
    raise UserError(
      f'{len(unreadable)} of {len(paths)} images could not be read and are left out; restore or remove them.'
    )


def _batches(
  paths: Sequence[pathlib.Path], preprocess: Any, unreadable: list[pathlib.Path]
) -> Iterator[tuple[list[str], Any]]:
  """(names, float32 images) of a batch, made ahead while the one before is computed; adds to `unreadable`."""
  from vit_jax.data.decode import Picture

  def prepared(path: pathlib.Path):
    try:
      return str(path), preprocess([Picture(path.read_bytes(), preprocess.channels, str(path)).pixels()])
    except (UserError, OSError) as error:
      return str(path), error

  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    submit: Callable = lambda group: [pool.submit(prepared, path) for path in group]
    size = _BATCH_SIZE.value
    groups = (submit(paths[start : start + size]) for start in range(0, len(paths), size))
    ahead = next(groups)
    while ahead:
      current, ahead = ahead, next(groups, None)
      done = [future.result() for future in current]
      for name, image in done:
        if isinstance(image, Exception):
          unreadable.append(pathlib.Path(name))
          print(image, file=sys.stderr)
      done = [(name, image) for name, image in done if not isinstance(image, Exception)]
      if done:
        yield [name for name, _ in done], [image for _, image in done]


def _classified(
  model: Any, batches: Iterable[tuple[list[str], Any]], names: tuple[str, ...] | None, top: int
) -> Iterator[Result]:
  import jax
  import numpy as np
  from flax import nnx

  graphdef, params = nnx.split(model)

  @jax.jit
  def best(params, images):
    return jax.lax.top_k(jax.nn.softmax(nnx.merge(graphdef, params)(images)), top)

  for files, images in batches:
    images = np.concatenate(images)
    # Filled up, for one shape is compiled.
    full = np.zeros((_BATCH_SIZE.value, *images.shape[1:]), np.float32)
    full[: len(images)] = images
    for file, *values in zip(files, *map(np.asarray, best(params, full))):
      pairs = zip(*(value.tolist() for value in values), strict=True)
      yield file, [(number, names[number] if names else None, share) for share, number in pairs]


def _write_csv(results: Iterable[Result]) -> None:
  writer = csv.writer(sys.stdout)
  writer.writerow(['image', 'rank', 'class', 'name', 'probability'])
  for file, best in results:
    for rank, (number, name, probability) in enumerate(best, start=1):
      writer.writerow([file, rank, number, name, f'{probability:.6g}'])


def _write_json(results: Iterable[Result]) -> None:
  """A list, an image a line, each line as soon as it is known."""
  separator = '['
  for file, best in results:
    predictions = [dict(zip(('class', 'name', 'probability'), item, strict=True)) for item in best]
    print(separator, json.dumps({'image': file, 'predictions': predictions}), sep='\n', end='', flush=True)
    separator = ','
  print('[]' if separator == '[' else '\n]')


if __name__ == '__main__':
  flags.mark_flag_as_required('checkpoint')
  cli.run(main, positional=True)
