"""Prepares images for training: any common source becomes a TFDS directory that is read fast in any order.

Usage: vit_jax prepare SRC DST [-- Apache Beam's options]
       vit_jax prepare imagenet21k|imagenet2012 SRC [DST]

SRC is a folder with a folder of images for each class (below train/, val/ and test/, or without these), a tar
or zip of such folders or of a tar for each class, a .csv file with the columns image, label and perhaps
split, a Hugging Face image folder, shards of WebDataset, parquet files with the images in them (hf:org/name: on the
Hub), or what the authors of CIFAR-10, CIFAR-100, MNIST, STL-10 and SVHN publish (such as cifar-10-python.tar.gz).
DST is then read by config.data.source='tfds:DST' and by tfds.data_source. Images are copied byte for byte, or shrunk.
After an interruption, the same command goes on, and the result is the same, byte for byte.

The names imagenet21k and imagenet2012 give the data the splits and, without DST, the place that recipes
expect.

Examples:
  vit_jax prepare imagenet21k ~/downloads/winter21_whole.tar.gz
  vit_jax prepare /path/to/images ~/data/flowers/1.0.0
  vit_jax prepare photos.tar ~/data/photos --shortest_side=256 --bad_images=skip
  vit_jax prepare hf:org/name@revision:folder ~/data/photos
  vit_jax prepare train.csv ~/data/photos --image_column=id --label_column=breed
  vit_jax prepare cc12m/ ~/data/cc12m --caption_column=txt --bad_images=skip
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import tqdm
from absl import flags

from vit_jax import cli
from vit_jax.foundation import cpus, hub, signals
from vit_jax.foundation.errors import Preempted, UserError
from vit_jax.prepare.named_sets import (
  NAMED_SETS,
  NamedSet,
  default_destination,
  label_options,
  training_command,
)

if TYPE_CHECKING:
  from vit_jax.prepare.run import Result
  from vit_jax.prepare.selection import Selection

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
  "The column of a table, or field of WebDataset's .json files, with the labels. By default label or labels, in "
  'a table also class, category or target, in WebDataset first the .cls file.',
)
_WEIGHT_COLUMN = flags.DEFINE_string(
  'weight_column',
  None,
  'The column or field with a weight from 0 to 1 for each label. By default label_probs or weights.',
)
_CAPTION_COLUMN = flags.DEFINE_string(
  'caption_column',
  None,
  'The column of a table or of parquet, or in WebDataset the field of .json files or the ending of files, such as txt, '
  'with the captions. Labels are then optional: --label_column names theirs.',
)
_CLASS_NAMES = flags.DEFINE_string(
  'class_names', None, 'A file with a name a line, for classes that SRC numbers from 0.'
)
_CLASSES = flags.DEFINE_string(
  'classes', None, 'A file with a class a line, as SRC calls it: only these are prepared.'
)
_ANY_ADDRESS = flags.DEFINE_bool(
  'any_address',
  False,
  'A table may also name images on link-local hosts (where clouds give credentials) and by chained protocols.',
)
_LIMIT = flags.DEFINE_integer(
  'limit',
  None,
  'A rehearsal: so many images of each class folder, shard of WebDataset or parquet file.',
  lower_bound=1,
)
_DUPLICATES = flags.DEFINE_enum(
  'duplicates',
  'report',
  ['report', 'merge'],
  'Equal images are listed in duplicates.csv; merge makes those of a split one, with the labels of all.',
)


def main(arguments: Sequence[str]) -> None:
  """Prepares what the command line says: SRC, DST and the options of Beam."""
  name, (source, destination, *rest) = _places(arguments)
  runner_options = tuple(rest)
  if runner_options and _RUNNER.value == 'local':
    raise UserError(
      f'{runner_options[0]!r} is neither SRC nor DST; leave it out, or choose a --runner of Apache Beam.'
    )
  # Imported here: the start takes seconds, which --help need not.
  from vit_jax.prepare import run
  from vit_jax.prepare.images import Shrinking
  from vit_jax.prepare.tables import Columns

  options = run.Options(
    shrinking=Shrinking(_LONGEST_SIDE.value, _SHORTEST_SIDE.value, _QUALITY.value),
    shard_mib=_SHARD_MIB.value,
    skip_bad=_BAD_IMAGES.value == 'skip',
    workers=_WORKERS.value or cpus.usable(),
    runner=_RUNNER.value,
    runner_options=runner_options,
    columns=Columns(_IMAGE_COLUMN.value, _LABEL_COLUMN.value, _WEIGHT_COLUMN.value, _CAPTION_COLUMN.value),
    selection=_selection(NAMED_SETS.get(name or '')),
    merge_copies=_DUPLICATES.value == 'merge',
  )
  if records := run.complete_records(source, destination, options):
    print(
      f'{destination} is complete with {_splits(records)} images; nothing is left to do, and {source} was not read '
      'again. If its images have changed since, prepare another folder, or remove this one.'
    )
    return
  with tqdm.tqdm(desc='listing', unit='image', disable=not sys.stderr.isatty()) as bar:

    def progress(done: int, total: int) -> None:
      if total and not bar.total:  # all are listed
        bar.reset(total)
        bar.set_description('')
      bar.update(done)

    try:
      with signals.raise_at_interrupt():  # the processes have to be ended
        result = run.prepare(source, destination, options, progress)
    except KeyboardInterrupt:
      raise Preempted('Interrupted.') from None
  _print(result, destination, name)


def _places(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
  """The name of a data set that recipes know, if one is given; and SRC, DST and the options of Beam."""
  name = arguments[0] if arguments and arguments[0] in NAMED_SETS else None
  places = list(arguments[1:] if name else arguments)
  if name and len(places) == 1:
    places.append(default_destination(name))
  if len(places) < 2:
    example = f'{name} /path/to/the/data' if name else '/path/to/images ~/data/flowers/1.0.0'
    raise UserError(f'{"SRC" if name else "SRC or DST"} is missing; write: vit_jax prepare {example}')
  return name, [*map(_absolute, places[:2]), *places[2:]]


def _selection(named: NamedSet | None) -> 'Selection':
  """Which images the flags and the name of a data set select."""
  from vit_jax.data.sources.folder_layout import class_name
  from vit_jax.prepare.selection import Selection, read_lines

  classes = read_lines(_CLASSES.value, 'classes')
  return Selection(
    split=named.split if named else None,
    val_name='validation' if named else 'val',
    num_classes=named.num_classes if named else None,
    limit=_LIMIT.value,
    classes=None if classes is None else frozenset(map(class_name, classes)),
    class_names=read_lines(_CLASS_NAMES.value, 'class_names', numbered=True),
    any_address=_ANY_ADDRESS.value,
  )


def _absolute(path: str) -> str:
  """The absolute path of a local path; an address as it is, of a data set on the Hub as fsspec takes it."""
  if address := hub.address_of(path):
    return hub.of_data(address)
  return path if '://' in path else os.path.abspath(os.path.expanduser(path))


def _counted(number: int, noun: str, plural: str = 's') -> str:
  return f'{number:,} {noun}{"" if number == 1 else plural}'


def _splits(records: Mapping[str, int]) -> str:
  return ', '.join(f'{split} {number:,}' for split, number in records.items())


def _print(result: 'Result', destination: str, name: str | None) -> None:
  from vit_jax.data.sources.tfds_files import BAD_IMAGES, DUPLICATES
  from vit_jax.prepare import storage

  labels = ', several labels an image' if result.multi_label else ''
  labels += ' with weights' if result.weighted else ''
  classes, shards = _counted(result.classes, 'class', 'es'), _counted(result.shards, 'file')
  captions = _counted(result.captions, 'caption')
  of = ', '.join([classes] * bool(result.classes) + [captions] * bool(result.captions))
  print(
    f'Wrote {destination}: {_splits(result.records)} images, {of}{labels}; {shards}, '
    f'{result.record_bytes / 2**20:,.1f} MiB.'
  )
  lists = label_options(result.longest if result.multi_label else None, result.weighted)
  if result.captions:
    print(f'Train on it: vit_jax train --config=configs/siglip.py:/path/to/clip,tfds:{destination},captions')
  elif name:
    print(f'Train on it: {training_command(name, sum(result.records.values()), lists)}')
  else:
    options = [f'--config.data.source=tfds:{destination}']
    if tuple(result.records) == ('train',):  # recipes evaluate on 'val'
      options = [f'{options[0]}:train[:90%]', '--config.evaluators.val.split=train[90%:]']
    print(f'Train on it with {shlex.join(options)}{lists}')
  if result.classes == 1:
    print(
      'There is nothing to tell apart in one class: check that SRC has a folder for each.', file=sys.stderr
    )
  if result.bad:
    print(f'{result.bad:,} bad images are left out, see {storage.join(destination, BAD_IMAGES)}.')
  if result.copies:
    merged = 'were merged with' if _DUPLICATES.value == 'merge' else 'equal'
    table = storage.join(destination, DUPLICATES)
    print(f'{result.copies:,} images {merged} another one, see {table}.')


if __name__ == '__main__':
  cli.run(main, positional=True)
