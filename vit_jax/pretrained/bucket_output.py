"""Checkpoints written to buckets: a format writes its files to this machine, from where they are copied."""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator

from vit_jax.foundation import buckets, hub
from vit_jax.foundation.errors import UserError

# Without these a folder is no checkpoint, so they are copied when all else is there: those of a Hugging Face
# folder and of a step of a run.
_LAST = ('model.safetensors', '_CHECKPOINT_METADATA')


@contextlib.contextmanager
def place_to_write(destination: str) -> Iterator[str]:
  """The local path to write a checkpoint to; where the destination is in a bucket, the files are copied at the end.

  UserError where it is another address, is in use, or cannot be written.
  """
  if address := hub.address_of(destination):
    raise UserError(
      f'{destination} is on the Hub, where models have cards; write it by vit_jax push SRC {address}.'
    )
  if not buckets.is_bucket(destination):
    if '://' in destination:
      raise UserError(
        f'{destination} is neither a path nor in a bucket (gs://…, s3://…); choose such a destination.'
      )
    yield destination
    return
  address = destination.rstrip('/')
  name = address.partition('://')[2].partition('/')[2]
  if not name:
    raise UserError(
      f'{destination} names no more than a bucket; write a name behind it, such as {address}/mine.'
    )
  bucket = buckets.Bucket(address)
  if bucket.below(address):
    raise UserError(f'{address} is not empty; choose another address.')
  with tempfile.TemporaryDirectory(prefix='vit_jax_checkpoint_') as folder:
    written = pathlib.Path(folder, name.rpartition('/')[2])
    yield str(written)
    _copy(written, address, bucket)


def _copy(written: pathlib.Path, address: str, bucket: buckets.Bucket) -> None:
  """Copies a file, or the files of a folder, to an address."""
  if written.is_file():
    bucket.upload(written, address)
    return
  files = [path for path in written.rglob('*') if path.is_file()]
  for last in (False, True):
    buckets.at_once(
      lambda file: bucket.upload(file, f'{address}/{file.relative_to(written).as_posix()}'),
      [file for file in files if (file.name in _LAST) == last],
    )
