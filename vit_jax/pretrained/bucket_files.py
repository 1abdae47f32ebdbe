"""Checkpoints in buckets, copied once into the user's cache: an object, a Hugging Face folder or a training run.

A copy is kept by address and version (~/.cache/vit_jax/downloads/BUCKET/DIGEST/FILE), so that a changed object is
copied again, and a broken-off copy goes on where it ended.
"""

import pathlib

import filelock

from vit_jax.checkpoint.bucket_steps import BucketSteps
from vit_jax.foundation import cache
from vit_jax.foundation.bucket_paths import local_place, named_apart
from vit_jax.foundation.buckets import Bucket, Entry, missing
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import file_kinds, receiving

_OF_FOLDERS = ('.json', '.safetensors', '.txt')  # what a Hugging Face folder's model consists of


def local_copy(address: str, kind: file_kinds.Kind, bucket: Bucket) -> pathlib.Path:
  """The local copy of an object, which has to be of a kind, or of a folder of a model's files.

  Raises:
    UserError: there is nothing, or nothing of that kind, at the address; it may not be read, changed
      meanwhile, or the bucket cannot be reached.
    OSError: the cache cannot be written.
  """
  entry = bucket.entry(address)
  entries = [entry] if entry is not None else _of_model(bucket, address.rstrip('/'))
  folder = _folder(address, entries)
  top = folder / _name(address)
  folder.mkdir(parents=True, exist_ok=True)
  with filelock.FileLock(folder / '.lock'):  # of several processes one copies, the others wait
    for item in entries:
      _copy(bucket, item, local_place(top, item.address, address.rstrip('/')))
  fault = file_kinds.fault(top, kind) if entry is not None else None
  if fault:
    top.unlink()
    raise UserError(f'{address} {fault}; check the address.')
  return top


def _of_model(bucket: Bucket, address: str) -> list[Entry]:
  """The objects of a folder that a model is read from; of a training run, those of its newest step."""
  objects, folders = bucket.listing(address)
  names = {folder.rpartition('/')[2]: folder for folder in folders}
  if not objects and not names:
    raise missing(address)
  chosen = [entry for entry in objects if entry.address.endswith(_OF_FOLDERS)]
  checkpoints = address if address.endswith('/checkpoints') else names.get('checkpoints')
  if checkpoints is not None:
    steps = BucketSteps(checkpoints)
    newest = steps.newest()
    chosen += [] if newest is None else bucket.below(steps.path(newest))
  elif 'params' in names or 'ema' in names:  # one step of a run
    chosen = bucket.below(address)
  if not chosen:
    raise UserError(
      f'{address} has no model: neither .json and .safetensors files, nor checkpoints/; check the address.'
    )
  return chosen


def _copy(bucket: Bucket, entry: Entry, path: pathlib.Path) -> None:
  """Copies an object to its place in the cache, unless it is there."""
  if path.is_file() and path.stat().st_size == entry.size:
    return
  partial = path.with_name(f'.{path.name}.partial')
  with named_apart(entry.address):
    path.parent.mkdir(parents=True, exist_ok=True)
    length = partial.stat().st_size if partial.exists() else 0
    receiving.append(partial, bucket.parts(entry, length), entry.size, path.name)
  if bucket.entry(entry.address) != entry:
    partial.unlink()
    raise UserError(f'{entry.address} was changed while it was copied; start again.')
  partial.replace(path)


def _folder(address: str, entries: list[Entry]) -> pathlib.Path:
  """The folder in the cache for these versions of an address's objects."""
  scheme, _, place = address.partition('://')
  return cache.folder_of(f'downloads/{scheme}-{place.partition("/")[0]}', repr([address, *entries]))


def _name(address: str) -> str:
  """The last part of an address, as a file name."""
  return address.rstrip('/').rpartition('/')[2].replace('\0', '_')[-120:].lstrip('.') or 'object'
