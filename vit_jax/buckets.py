"""Objects in buckets (gs://…, s3://…): their sizes and versions, and parts of their bytes, over a network that fails.

gcsfs and s3fs make the requests and find the platform's credentials; what is public needs none. Both retry what a
server says it could not do. Here a time limit and a count of bytes are added, for connections that stall or break off.
"""

import asyncio
import dataclasses
import importlib
import importlib.util
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent import futures
from typing import Any

from vit_jax.errors import UserError

_log = logging.getLogger(__name__)
_PART = 8 * 2**20  # bytes of one request for a large object
_PARALLEL = 8  # requests at a time for it
# They print a stack where a request fails, and that a machine without credentials has none.
_LOGGERS = ('gcsfs', 'google.auth._default')


@dataclasses.dataclass(frozen=True)
class _Kind:
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
  """How long a bucket may take.

  Attributes:
    timeout: seconds that one request may take, with the retries of the library below.
    attempts: how often it is made.
    pause: seconds before the second attempt; they double with each further one.
  """

  timeout: float = 90
  attempts: int = 8
  pause: float = 0.5


@dataclasses.dataclass(frozen=True)
class Entry:
  """An object: its address, its bytes, and a version that changes with its content."""

  address: str
  size: int
  version: str


def is_bucket(path: str) -> bool:
  """Whether a path is an address in a bucket."""
  return path.partition('://')[0] in _KINDS and '://' in path


def is_installed(path: str) -> bool:
  """Whether the library for the scheme of a bucket's address is there."""
  return importlib.util.find_spec(_KINDS[path.partition('://')[0]].package) is not None


def file_system(address: str) -> Any:
  """fsspec's file system for a bucket's address, with the platform's credentials, or without where there are none.

  Raises:
    UserError: its package is not installed.
  """
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
  """Reads the objects of a bucket; threads may share it."""

  def __init__(self, address: str, patience: Patience = Patience()):
    """
    Args:
      address: of the bucket, or of anything in it.
      patience: how long it may take.

    Raises:
      UserError: the library for it is not installed.
    """
    self._scheme = address.partition('://')[0]
    self._kind, self._patience = _KINDS[self._scheme], patience
    self._files = file_system(address)

  def entry(self, address: str) -> Entry | None:
    """The object at an address; None: there is none.

    Raises:
      UserError: it may not be read, or the bucket cannot be reached.
    """
    try:
      information = self._request(address, lambda: self._files._info(address))
    except FileNotFoundError:
      return None
    return self._entry(information) if information['type'] == 'file' else None

  def listing(self, address: str) -> tuple[list[Entry], list[str]]:
    """The objects directly below an address, and the addresses of what is like a folder there; raises as `entry`."""
    try:
      found = self._request(address, lambda: self._files._ls(address.rstrip('/') + '/', detail=True))
    except FileNotFoundError:
      return [], []
    folders = [
      f'{self._scheme}://{item["name"].rstrip("/")}' for item in found if item['type'] == 'directory'
    ]
    return [self._entry(item) for item in found if item['type'] == 'file'], folders

  def read(self, address: str, first: int, last: int) -> bytes:
    """The bytes from `first` to before `last` of an object.

    Raises:
      UserError: it is not there, may not be read or has fewer bytes, or the bucket cannot be reached.
    """

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

  def _entry(self, information: dict[str, Any]) -> Entry:
    version = information.get('generation') or information.get('ETag') or information.get('etag') or ''
    return Entry(f'{self._scheme}://{information["name"]}', int(information['size']), str(version))

  def _request(self, address: str, make: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a coroutine on fsspec's loop, made again after a failure that may pass.

    Raises:
      FileNotFoundError: there is nothing at the address.
      UserError: no access, or every attempt failed.
    """
    from fsspec import asyn

    async def limited() -> Any:
      return await asyncio.wait_for(make(), self._patience.timeout)

    reason = ''
    for attempt in range(self._patience.attempts):
      if attempt:
        _log.warning('%s is asked for again: %s.', address, reason)
        time.sleep(self._patience.pause * 2 ** (attempt - 1))
      try:
        return asyn.sync(self._files.loop, limited)
      except FileNotFoundError:
        raise
      except TimeoutError:
        reason = f'no answer within {self._patience.timeout:g} s'
      except Exception as error:  # those of aiohttp, botocore, google.auth and requests, with no common type
        if _is_refusal(error):
          raise UserError(
            f'{address} may not be read with the credentials here, or without any; give some that may '
            f'({self._kind.credentials}).'
          ) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip('.')
    raise UserError(
      f'{address} cannot be read ({reason}, {self._patience.attempts} times); check the network, and start again.'
    )


def missing(address: str) -> UserError:
  """The error of an address where there is nothing."""
  return UserError(
    f'There is no {address}, neither an object nor a folder; check the names of bucket and object.'
  )


def _is_refusal(error: Exception) -> bool:
  """Whether access was refused: asking again would not help."""
  refused = isinstance(error, PermissionError) or getattr(error, 'code', None) in (401, 403, '401', '403')
  return refused or str(error).startswith('Forbidden')  # gcsfs's 403 is a plain OSError
