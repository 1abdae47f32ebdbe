"""Teachers label images: a data set with soft labels to train a student on (Noisy Student, arXiv 1911.04252).

vit_jax selftrain --teachers=runs/teacher --workdir=runs/labelled photos/
vit_jax selftrain --teachers=runs/one,runs/other --workdir=runs/labelled --confidence=0.3 photos/
vit_jax selftrain --teachers=runs/teacher --workdir=runs/labelled 'tfds:cifar10:train[10%:]'
vit_jax selftrain --teachers=runs/teacher --workdir=runs/labelled --part=0/4 photos/

A teacher is what `vit_jax.load` takes. The images are files, folders of them, or a source with its split, whose
own labels are not looked at. The result, WORKDIR/1.0.0, is as `vit_jax.prepare` makes it; the command ends with the
options of a run on it. After an interruption the same command goes on, and the result is the same. To share the
work, start a command with each --part on any machines that see WORKDIR, and when they are done one without --part.
The predictions stay in WORKDIR: another --confidence, --per_class or --top chooses from them anew once 1.0.0 is
removed.
"""

import pathlib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tqdm
from absl import flags

from vit_jax import cli
from vit_jax.foundation.errors import UserError

if TYPE_CHECKING:
  from vit_jax.selftrain.choosing import Predictions
  from vit_jax.selftrain.samples import Labels

_TEACHERS = flags.DEFINE_string(
  'teachers',
  None,
  'What vit_jax.load takes, or several with commas between them: their probabilities are averaged.',
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'The folder for predictions and, as 1.0.0, for the data set.')
_CONFIDENCE = flags.DEFINE_float(
  'confidence',
  0.0,
  'Images whose most probable class is less probable are left out.',
  lower_bound=0,
  upper_bound=1,
)
_PER_CLASS = flags.DEFINE_integer(
  'per_class', None, 'At most so many images of each class, the most confident ones.', lower_bound=1
)
_TOP = flags.DEFINE_integer(
  'top', 5, 'Classes in a soft label, the most probable ones. 1: hard labels.', lower_bound=1, upper_bound=100
)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 64, 'Images at a time.', lower_bound=1)
_PART = flags.DEFINE_string('part', None, 'Label one part of several and stop: 0/4, 1/4, 2/4 or 3/4.')


def main(arguments: Sequence[str]) -> None:
  """Labels the images, chooses among them and writes the data set."""
  teachers = cli.required(_TEACHERS).split(',')
  workdir = cli.local_folder(_WORKDIR).absolute()
  part = _part(_PART.value)
  if not arguments:
    raise cli.missing_arguments('Name images, folders of them, or one source behind the flags')
  # Imported here: the start takes seconds, which --help need not.
  from vit_jax.selftrain.unlabelled import opened

  source = opened(arguments)
  from vit_jax.checkpoint.lease import Lease
  from vit_jax.selftrain import labelling, samples
  from vit_jax.selftrain.choosing import Choice

  teacher = labelling.Teachers(teachers, _BATCH_SIZE.value or 64)
  chunks = labelling.Chunks(workdir, teacher, source)
  with tqdm.tqdm(total=len(source), unit='image', disable=not sys.stderr.isatty()) as bar:
    chunks.label(teacher, source, part, bar.update)
  if _PART.value is not None:
    print(f'Part {_PART.value} of {len(source):,} images is labelled; end with the command without --part.')
    return
  predictions = chunks.read()
  choice = Choice(_CONFIDENCE.value or 0.0, _PER_CLASS.value, _TOP.value or 5)
  with Lease(workdir):  # the parts of two data sets would be mixed
    written = samples.prepare(source, predictions, choice, teacher.class_names, workdir)
  _print(predictions, written, workdir / samples.DATA_SET)


def _part(text: str | None) -> tuple[int, int]:
  """'1/4' -> (1, 4); without one, all of it: (0, 1)."""
  if text is None:
    return 0, 1
  found = re.fullmatch(r'(\d{1,6})/(\d{1,6})', text)
  if not found or int(found[1]) >= int(found[2]):
    raise UserError(f'--part={text} is not a part; write 0/4, 1/4, 2/4 or 3/4 for four parts.')
  return int(found[1]), int(found[2])


def _print(predictions: 'Predictions', written: 'Labels', data_set: pathlib.Path) -> None:
  numbers, unreadable = written.numbers, written.unreadable
  counts = np.bincount(predictions.classes[numbers, 0])
  counts = counts[counts > 0]
  left_out = f' {unreadable:,} cannot be read and are left out.' if unreadable else ''
  print(
    f'Chose {len(numbers):,} of {len(predictions.classes):,} images, {counts.min():,} to {counts.max():,} of each of '
    f'{len(counts):,} classes; the mean of their confidence is {predictions.probabilities[numbers, 0].mean():.3f}.'
    f'{left_out}'
  )
  print(
    f'Train on it with --config.data.source=tfds:{data_set} --config.data.max_labels={written.longest} '
    f'--config.data.label_weights=True'
  )


if __name__ == '__main__':
  cli.run(main, positional=True)
