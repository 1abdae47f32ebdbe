"""Prepares images for fast reading in any order: TFDS directories of array_record files, of common sources.

python -m vit_jax.prepare /path/to/images ~/data/flowers/1.0.0
python -m vit_jax.prepare photos.tar ~/data/photos --shortest_side=256 --bad_images=skip
python -m vit_jax.prepare labels.csv ~/data/photos
python -m vit_jax.prepare gs://bucket/photos.tar gs://bucket/data/photos --runner=dataflow -- --project=…

SRC is a folder with a folder for each class (below train/, val/ and test/, or without these), a tar or zip
of such folders, a .csv file with the columns image, label and perhaps split, or a Hugging Face image folder.
DST is then what tfds.data_source and config.data.source='tfds:DST' read. Images are copied, or shrunk.

After an interruption, the same command goes on, and DST is in the end the same, byte for byte. What stands
behind -- are Apache Beam's own options.
"""

import os
import sys
from collections.abc import Sequence

import tqdm
from absl import flags

from vit_jax import cli
from vit_jax.errors import Preempted, UserError
from vit_jax.prepare import run, storage
from vit_jax.prepare.images import Shrinking

_LONGEST_SIDE = flags.DEFINE_integer(
  'longest_side', None, 'Shrink images to at most so many pixels.', lower_bound=1
)
_SHORTEST_SIDE = flags.DEFINE_integer(
  'shortest_side', None, 'Shrink images whose shortest side has more pixels.', lower_bound=1
)
_QUALITY = flags.DEFINE_integer(
  'quality', 95, 'Of the JPEG that a shrunk image becomes.', lower_bound=1, upper_bound=100
)
_BAD_IMAGES = flags.DEFINE_enum(
  'bad_images',
  'stop',
  ['stop', 'skip'],
  'Whether images that cannot be decoded are an error, when all are known, or left out; both lists them.',
)
_SHARD_MIB = flags.DEFINE_integer(
  'shard_mib', None, 'About the size of a file; by default 4 to 512, for 128 files a split.', lower_bound=1
)
_WORKERS = flags.DEFINE_integer('workers', None, 'Processes; by default one a processor.', lower_bound=1)
_RUNNER = flags.DEFINE_string(
  'runner', 'local', "local: processes on this machine; or an Apache Beam runner's name: direct, dataflow, …"
)


def main(arguments: Sequence[str]) -> None:
  if len(arguments) < 2:
    raise UserError('Usage: python -m vit_jax.prepare SRC DST [--shortest_side=…] [--bad_images=skip].')
  source, destination, *runner_options = arguments
  if runner_options and _RUNNER.value == 'local':
    raise UserError(f'{runner_options[0]!r} is neither SRC nor DST; options of Beam need --runner.')
  source, destination = map(_full, (source, destination))
  options = run.Options(
    shrinking=Shrinking(_LONGEST_SIDE.value, _SHORTEST_SIDE.value, _QUALITY.value),
    shard_mib=_SHARD_MIB.value,
    skip_bad=_BAD_IMAGES.value == 'skip',
    workers=_WORKERS.value or len(os.sched_getaffinity(0)),
    runner=_RUNNER.value,
    runner_options=tuple(runner_options),
  )
  if run.complete(source, destination, options):
    print(f'{destination} is complete; nothing is left to do.')
    return
  with tqdm.tqdm(desc='listing', unit='image', disable=not sys.stderr.isatty()) as bar:

    def progress(done: int, total: int) -> None:
      bar.desc, bar.total = '', total
      bar.update(done)

    try:
      result = run.prepare(source, destination, options, progress)
    except KeyboardInterrupt:
      raise Preempted('Interrupted.') from None
  _print(result, destination)


def _full(path: str) -> str:
  return path if storage.is_address(path) else os.path.abspath(os.path.expanduser(path))


def _print(result: run.Result, destination: str) -> None:
  splits = ', '.join(f'{split} {records:,}' for split, records in result.records.items())
  several = ', several labels an image' if result.multi_label else ''
  print(
    f'Wrote {destination}: {splits} images, {result.classes:,} classes{several}; {result.shards} files, '
    f'{result.record_bytes / 2**20:,.1f} MiB.'
  )
  if result.bad:
    print(f'{result.bad} bad images are left out, see {os.path.join(destination, "bad_images.csv")}.')


if __name__ == '__main__':
  cli.run(main, positional=True)
