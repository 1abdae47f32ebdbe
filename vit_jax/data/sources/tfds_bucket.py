"""TFDS data sets in buckets: their small files are copied into the cache, their records are read where they are."""

import os
import pathlib

import filelock

from vit_jax.data.sources.tfds_files import INFO
from vit_jax.foundation import buckets, cache, files
from vit_jax.foundation.buckets import Bucket
from vit_jax.foundation.errors import UserError

_LARGEST = 64 * 2**20  # bytes of a file beside the records
_RECORDS = ('.array_record', '.tfrecord', '.parquet', '.csv')


def address_of(name: str) -> str | None:
  """Where in a bucket a data set is; None: it is on a disk.

  Args:
    name: an address, or a data set as TFDS writes it ('name/config:1.0.0') where $TFDS_DATA_DIR is in a bucket.

  Raises:
    UserError: a scheme that is no bucket's, no such data set there, or no version in the name of several.
  """
  if '://' in name:
    if not buckets.is_bucket(name):
      raise UserError(f'tfds:{name} is an address of no known kind; give one of gs:// or s3://, or a path.')
    return name.rstrip('/')
  data_dir = os.environ.get('TFDS_DATA_DIR', '')
  if name[0] in '/~.' or not buckets.is_bucket(data_dir):
    return None
  address = '/'.join((data_dir.rstrip('/'), name.replace(':', '/')))
  objects, folders = Bucket(data_dir).listing(address)
  if any(entry.address.endswith(f'/{INFO}') for entry in objects):
    return address
  if len(folders) == 1:
    return folders[0]
  found = f'; there are {", ".join(folders[:5])}, write one as tfds:gs://…' if folders else ''
  raise UserError(
    f'There is no prepared tfds:{name} in {data_dir} (TFDS_DATA_DIR){found or ", check its name"}.'
  )


def local_folder(bucket: Bucket, address: str) -> pathlib.Path:
  """A folder in the cache with a data set's files but its records; UserError: it is not there, or cannot be written."""
  objects, folders = bucket.listing(address)
  small = [
    entry
    for entry in objects
    if entry.size <= _LARGEST and not any(kind in entry.address.rpartition('/')[2] for kind in _RECORDS)
  ]
  if not any(entry.address.endswith(f'/{INFO}') for entry in small):
    inner = (
      f'; did you mean tfds:{sorted(folders)[-1]}?'
      if folders
      else '; give the one with the version as its name.'
    )
    raise UserError(f'{address} is no directory prepared by TFDS, it has no {INFO}{inner}')
  try:
    folder = cache.folder_of('data_sets', repr(sorted(map(repr, small)))).joinpath(*address.split('/')[-2:])
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / '.lock'):
      for entry in small:
        path = folder / entry.address.rpartition('/')[2]
        if not path.is_file() or path.stat().st_size != entry.size:
          files.write_bytes(path, bucket.read(entry.address, 0, entry.size) if entry.size else b'')
  except (OSError, RuntimeError) as error:
    raise UserError(
      f'{address} needs the cache, which cannot be written ({error}); set XDG_CACHE_HOME to a folder that can.'
    ) from error
  return folder
