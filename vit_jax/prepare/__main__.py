"""Prepares images for training: any common source becomes a TFDS directory that is read fast in any order.

Usage: python -m vit_jax.prepare SRC DST [-- Apache Beam's options]

SRC is a folder with a folder of images for each class (below train/, val/ and test/, or without these), a tar
or zip of such folders, a .csv file with the columns image, label and perhaps split, or a Hugging Face image
folder. DST is then read by config.data.source='tfds:DST' and by tfds.data_source. Images are copied byte for
byte, or shrunk. After an interruption, the same command goes on, and the result is the same, byte for byte.

Examples:
  python -m vit_jax.prepare /path/to/images ~/data/flowers/1.0.0
  python -m vit_jax.prepare photos.tar ~/data/photos --shortest_side=256 --bad_images=skip
  python -m vit_jax.prepare train.csv ~/data/photos --image_column=id --label_column=breed
"""

import os
import sys
from collections.abc import Sequence

import tqdm
from absl import flags

from vit_jax import cli, signals
from vit_jax.errors import Preempted, UserError
from vit_jax.prepare import run, storage
from vit_jax.prepare.images import Shrinking
from vit_jax.prepare.tables import Columns

_LONGEST_SIDE = flags.DEFINE_integer(
  'longest_side', None, 'Shrink images whose longest side has more pixels than this.', lower_bound=1
)
_SHORTEST_SIDE = flags.DEFINE_integer(
  'shortest_side', None, 'Shrink images whose shortest side has more pixels than this.', lower_bound=1
)
_QUALITY = flags.DEFINE_integer(
  'quality', 95, 'The quality of the JPEGs that shrunk images become.', lower_bound=1, upper_bound=100
)
_BAD_IMAGES = flags.DEFINE_enum(
  'bad_images',
  'stop',
  ['stop', 'skip'],
  'What to do with images that cannot be decoded: stop lists them all and fails; skip leaves them out, and '
  'what a tar lost that was cut short.',
)
_SHARD_MIB = flags.DEFINE_integer(
  'shard_mib',
  None,
  'About the size of a file in MiB. By default a split has 128 files of 4 to 512 MiB.',
  lower_bound=1,
)
_WORKERS = flags.DEFINE_integer(
  'workers', None, 'The number of processes. By default one for each processor.', lower_bound=1
)
_RUNNER = flags.DEFINE_string(
  'runner',
  'local',
  'Where it runs: local, in processes of this machine; or a runner of Apache Beam, such as dataflow.',
)
_IMAGE_COLUMN = flags.DEFINE_string(
  'image_column',
  None,
  "The column of a table with the images' paths. By default image, file_name, filename, file, path or id.",
)
_LABEL_COLUMN = flags.DEFINE_string(
  'label_column',
  None,
  'The column of a table with the labels. By default label, labels, class, category or target.',
)


def main(arguments: Sequence[str]) -> None:
  """Prepares what the command line says.

  Args:
    arguments: SRC, DST and the options of Beam.

  Raises:
    UserError: something about the arguments, the source or the destination is wrong.
    Preempted: interrupted; the same command goes on.
  """
  if len(arguments) < 2:
    raise UserError(
      'SRC or DST is missing; give both: python -m vit_jax.prepare /path/to/images ~/data/flowers/1.0.0'
    )
  source, destination = map(_absolute, arguments[:2])
  runner_options = tuple(arguments[2:])
  if runner_options and _RUNNER.value == 'local':
    raise UserError(
      f'{runner_options[0]!r} is neither SRC nor DST; leave it out, or choose a --runner of Apache Beam.'
    )
  options = run.Options(
    shrinking=Shrinking(_LONGEST_SIDE.value, _SHORTEST_SIDE.value, _QUALITY.value),
    shard_mib=_SHARD_MIB.value,
    skip_bad=_BAD_IMAGES.value == 'skip',
    workers=_WORKERS.value or len(os.sched_getaffinity(0)),
    runner=_RUNNER.value,
    runner_options=runner_options,
    columns=Columns(_IMAGE_COLUMN.value, _LABEL_COLUMN.value),
  )
  if run.is_complete(source, destination, options):
    print(f'{destination} is complete; nothing is left to do.')
    return
  with tqdm.tqdm(desc='listing', unit='image', disable=not sys.stderr.isatty()) as bar:

    def progress(done: int, total: int) -> None:
      bar.desc, bar.total = '', total
      bar.update(done)

    try:
      with signals.raise_at_interrupt():  # the processes have to be ended
        result = run.prepare(source, destination, options, progress)
    except KeyboardInterrupt:
      raise Preempted('Interrupted.') from None
  _print(result, destination)


def _absolute(path: str) -> str:
  """The absolute path of a local path; an address as it is."""
  return path if storage.is_address(path) else os.path.abspath(os.path.expanduser(path))


def _counted(number: int, noun: str, plural: str = 's') -> str:
  return f'{number:,} {noun}{"" if number == 1 else plural}'


def _print(result: run.Result, destination: str) -> None:
  splits = ', '.join(f'{split} {records:,}' for split, records in result.records.items())
  labels = ', several labels an image' if result.multi_label else ''
  classes, shards = _counted(result.classes, 'class', 'es'), _counted(result.shards, 'file')
  print(
    f'Wrote {destination}: {splits} images, {classes}{labels}; {shards}, {result.record_bytes / 2**20:,.1f} MiB.'
  )
  print(f'Train on it with --config.data.source=tfds:{destination}')
  if result.classes == 1:
    print(
      'There is nothing to tell apart in one class: check that SRC has a folder for each.', file=sys.stderr
    )
  if result.bad:
    print(f'{result.bad} bad images are left out, see {os.path.join(destination, "bad_images.csv")}.')


if __name__ == '__main__':
  cli.run(main, positional=True)
