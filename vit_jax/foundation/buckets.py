"""Objects in buckets (gs://…, s3://…), read and written over a network that fails.

gcsfs and s3fs make the requests and find the platform's credentials; what is public needs none. Both retry what a
server says it could not do. Here a time limit and a count of bytes are added, for connections that stall or break off.
"""

import asyncio
import dataclasses
import errno
import importlib
import importlib.util
import logging
import os
import pathlib
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, NamedTuple, TypeVar

from vit_jax.foundation.bucket_paths import named_apart
from vit_jax.foundation.errors import OutOfReach, UserError, first_line

_log = logging.getLogger(__name__)
_PART = 8 * 2**20  # bytes of one request for a large object
_PARALLEL = 8  # requests at a time for it
_OBJECTS = 16  # objects at a time, of many
_SLOWEST = 2**20  # bytes a second: an upload may take its timeout, and longer in proportion to its size
# They print a stack where a request fails, and that a machine without credentials has none.
_LOGGERS = ('gcsfs', 'google.auth._default')

_Item = TypeVar('_Item')


class _Kind(NamedTuple):
  """What a scheme needs: the package, the extra that installs it, and how credentials are given."""

  package: str
  extra: str
  credentials: str


_KINDS = {
  'gs': _Kind('gcsfs', 'gcs', 'gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS'),
  's3': _Kind('s3fs', 's3', 'aws configure, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY'),
}


@dataclasses.dataclass(frozen=True)
class Patience:
  """How long a bucket may take."""

  timeout: float = 90  # seconds that one request may take, with the retries of the library below
  attempts: int = 8  # how often it is made
  pause: float = 0.5  # seconds before the second attempt; they double with each further one


# For what a run keeps in a bucket: it waits for five minutes in all, beside what the library below waits.
OF_RUNS = Patience(attempts=10)


@dataclasses.dataclass(frozen=True)
class Entry:
  """An object: its address, its bytes, and a version that changes with its content."""

  address: str
  size: int
  version: str


def is_bucket(path: str) -> bool:
  """Whether a path is an address in a bucket."""
  return path.partition('://')[0] in _KINDS and '://' in path


def check(address: str) -> None:
  """Raises UserError for an address without a bucket, such as 'gs://', whose requests would be of the account."""
  scheme, _, place = address.partition('://')
  if not place.partition('/')[0]:
    raise UserError(
      f'{address} names no bucket; write one behind the slashes, such as {scheme}://bucket/folder.'
    )


def is_installed(path: str) -> bool:
  """Whether the library for the scheme of a bucket's address is there."""
  return importlib.util.find_spec(_KINDS[path.partition('://')[0]].package) is not None


def file_system(address: str) -> Any:
  """fsspec's file system for a bucket's address, with the platform's credentials, or without where there are none.

  Raises UserError where its package is not installed, or the address has no bucket.
  """
  check(address)
  scheme = address.partition('://')[0]
  try:
    if scheme == 's3':
      from s3fs import S3FileSystem

      session = importlib.import_module('botocore.session').get_session()  # which s3fs needs
      return S3FileSystem(anon=session.get_credentials() is None, use_listings_cache=False)
    # gcsfs's default class would ask a further service about each bucket, which anonymous users cannot.
    from gcsfs.core import GCSFileSystem
  except ImportError as error:
    raise UserError(
      f"{address} needs another package; install it with: pip install 'vit_jax[{_KINDS[scheme].extra}]'"
    ) from error
  for name in _LOGGERS:
    logging.getLogger(name).setLevel(logging.CRITICAL)
  return GCSFileSystem(use_listings_cache=False)


class Bucket:
  """Reads and writes the objects of a bucket; threads may share it.

  Every method raises UserError where there is no access, and OutOfReach where every attempt failed.
  """

  def __init__(self, address: str, patience: Patience = Patience()):
    """`address` is that of the bucket, or of anything in it; raises as `file_system`."""
    self._scheme = address.partition('://')[0]
    self._kind, self._patience = _KINDS[self._scheme], patience
    self._files = file_system(address)

  def entry(self, address: str) -> Entry | None:
    """The object at an address; None: there is none."""
    found = self._found(address, lambda: self._files._info(address), {'type': None})
    return self._entry(found) if found['type'] == 'file' else None

  def listing(self, address: str) -> tuple[list[Entry], list[str]]:
    """The objects directly below an address, and the addresses of what is like a folder there."""
    place = address.rstrip('/')
    found = self._found(address, lambda: self._files._ls(f'{place}/', detail=True), [])
    # Google's listing of an object has that object, and of a folder that a console has made that folder.
    below = [item for item in found if f'{self._scheme}://{item["name"].rstrip("/")}' != place]
    folders = [
      f'{self._scheme}://{item["name"].rstrip("/")}' for item in below if item['type'] == 'directory'
    ]
    return self._entries(below), folders

  def read(self, address: str, first: int, last: int) -> bytes:
    """The bytes from `first` to before `last` of an object; UserError where it is not there or has fewer."""

    async def part() -> bytes:
      content = await self._files._cat_file(address, start=first, end=last)
      if len(content) != last - first:
        raise ConnectionError(f'{len(content):,} of {last - first:,} bytes came')
      return content

    try:
      return self._request(address, part)
    except FileNotFoundError as error:
      raise missing(address) from error

  def parts(self, entry: Entry, first: int = 0) -> Iterator[bytes]:
    """The bytes of an object from `first` on, in order; several requests are under way at a time. Raises as `read`."""
    starts = range(first, entry.size, _PART)
    with futures.ThreadPoolExecutor(_PARALLEL) as pool:
      for group in range(0, len(starts), _PARALLEL):  # so many parts are held in memory
        yield from pool.map(
          lambda start: self.read(entry.address, start, min(start + _PART, entry.size)),
          starts[group : group + _PARALLEL],
        )

  def download(self, entry: Entry, path: pathlib.Path) -> None:
    """Writes an object to a local file, whose folder is made; raises as `read`, and OSError without space for it."""
    with named_apart(entry.address):
      path.parent.mkdir(parents=True, exist_ok=True)
      if entry.size > shutil.disk_usage(path.parent).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
      with open(path, 'wb') as file:
        file.writelines(self.parts(entry))

  def below(self, address: str) -> list[Entry]:
    """All objects below an address."""
    place = address.rstrip('/') + '/'
    return self._entries(self._found(address, lambda: self._files._find(place, detail=True), {}).values())

  def write(self, address: str, content: bytes) -> None:
    """Writes an object, which readers see once it is whole."""
    self._send(address, lambda: self._files._pipe_file(address, content), len(content))

  def upload(self, path: pathlib.Path, address: str) -> None:
    """Writes an object from a local file that nobody changes meanwhile."""
    self._send(address, lambda: self._files._put_file(str(path), address), path.stat().st_size)

  def write_if(self, address: str, content: bytes, version: str | None) -> str | None:
    """Writes a small object if what is there has a version; None: the object must not exist.

    Returns:
      The new version, or None where another one is there. An answer that was lost on its way counts as None too,
      although the object is written.
    """
    make = self._write_if_google if self._scheme == 'gs' else self._write_if_amazon
    try:
      if version is None:
        return self._send(address, lambda: make(address, content, None))
      return self._request(address, lambda: make(address, content, version))
    except (FileExistsError, FileNotFoundError):
      return None

  def copy(self, address: str, to: str) -> None:
    """Copies an object within the bucket."""
    self._request(address, lambda: self._files._cp_file(address, to))

  def remove(self, addresses: Iterable[str]) -> None:
    """Removes objects; one that is not there is none to remove."""
    at_once(lambda each: self._found(each, lambda: self._files._rm_file(each), None), addresses)

  async def _write_if_google(self, address: str, content: bytes, version: str | None) -> str:
    bucket, name, _ = self._files.split_path(address)
    answer = await self._files._call(
      'POST',
      f'{self._files._location}/upload/storage/v1/b/{bucket}/o',
      uploadType='media',
      name=name,
      ifGenerationMatch=version or '0',
      headers={'Content-Type': 'application/octet-stream'},
      data=content,
      json_out=True,
    )
    return str(answer['generation'])

  async def _write_if_amazon(self, address: str, content: bytes, version: str | None) -> str:
    bucket, name, _ = self._files.split_path(address)
    condition = {'IfNoneMatch': '*'} if version is None else {'IfMatch': version}
    try:
      answer = await self._files._call_s3('put_object', Bucket=bucket, Key=name, Body=content, **condition)
    except OSError as error:
      if 'PreconditionFailed' in str(error.__cause__):
        raise FileExistsError(address) from error
      raise
    return answer['ETag']

  def _send(self, address: str, make: Callable[[], Awaitable[Any]], size: int = 0) -> Any:
    """`_request` for an object that need not be there, so that what is not found is the bucket."""
    try:
      return self._request(address, make, size)
    except FileNotFoundError as error:
      raise _no_bucket(address) from error

  def _entries(self, found: Iterable[dict[str, Any]]) -> list[Entry]:
    """The objects of a listing, without the empty ones that consoles make for a folder ('run/')."""
    return [self._entry(item) for item in found if item['type'] == 'file' and not item['name'].endswith('/')]

  def _entry(self, information: dict[str, Any]) -> Entry:
    version = information.get('generation') or information.get('ETag') or information.get('etag') or ''
    return Entry(f'{self._scheme}://{information["name"]}', int(information['size']), str(version))

  def _found(self, address: str, make: Callable[[], Awaitable[Any]], otherwise: Any) -> Any:
    """`_request`, or `otherwise` where there is nothing at the address."""
    try:
      return self._request(address, make)
    except FileNotFoundError:
      return otherwise

  def _request(self, address: str, make: Callable[[], Awaitable[Any]], size: int = 0) -> Any:
    """The result of a coroutine on fsspec's loop, which sends `size` bytes, made again after a failure that may pass.

    Raises as the class does, FileNotFoundError where there is nothing, and FileExistsError for another version.
    """
    from fsspec import asyn

    seconds = self._patience.timeout + size / _SLOWEST

    async def limited() -> Any:
      return await asyncio.wait_for(make(), seconds)

    reason = ''
    for attempt in range(self._patience.attempts):
      if attempt:
        _log.warning('%s is asked for again: %s.', address, reason)
        time.sleep(self._patience.pause * 2 ** (attempt - 1))
      try:
        return asyn.sync(self._files.loop, limited)
      except (FileNotFoundError, FileExistsError):
        raise
      except TimeoutError:
        reason = f'no answer within {seconds:g} s'
      except Exception as error:  # those of aiohttp, botocore, google.auth and requests, with no common type
        if _is_refusal(error):
          raise UserError(
            f'{address} may not be used with the credentials here, or without any; give some that may '
            f'({self._kind.credentials}).'
          ) from error
        reason = first_line(error)
    raise OutOfReach(
      f'{address} cannot be reached ({reason}, {self._patience.attempts} times); check the network, and start again.'
    )


def at_once(function: Callable[[_Item], object], items: Iterable[_Item]) -> None:
  """Calls a function on each of many objects, several at a time; raises the first error."""
  with futures.ThreadPoolExecutor(_OBJECTS) as pool:
    for _ in pool.map(function, items):
      pass


def missing(address: str) -> UserError:
  """The error of an address where there is nothing."""
  return UserError(
    f'There is no {address}, neither an object nor a folder; check the names of bucket and object.'
  )


def _no_bucket(address: str) -> UserError:
  """The error of an address that cannot be written since its bucket is not there."""
  scheme, _, place = address.partition('://')
  return UserError(
    f'There is no bucket {scheme}://{place.partition("/")[0]}; make it first, or check the name.'
  )


def _is_refusal(error: Exception) -> bool:
  """Whether access was refused: asking again would not help."""
  refused = isinstance(error, PermissionError) or getattr(error, 'code', None) in (401, 403, '401', '403')
  return refused or str(error).startswith('Forbidden')  # gcsfs's 403 is a plain OSError
