"""Checkpoint files from the network: streamed into a cache, resumed where they broke off, size-checked."""

import fcntl
import http.client
import json
import pathlib
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import tqdm

from vit_jax import cache
from vit_jax.errors import UserError
from vit_jax.pretrained import catalogue

_CHUNK = 2**20
_ATTEMPTS = 5
_TIMEOUT = 60  # seconds without a byte


def is_address(source: str) -> bool:
  """Whether `source` is a network address and not a path or a name."""
  return source.startswith(('https://', 'http://', 'gs://'))


def local_file(source: str) -> pathlib.Path:
  """The local copy of an address or of a published file's name, downloaded if it is not there yet.

  Raises:
    UserError: there is no such file, the server cannot be reached, or the download broke off.
  """
  if is_address(source):
    return _cached(public_url(source), source, [])
  near = catalogue.nearest(source)
  if not catalogue.in_grammar(source):
    raise UserError(f'{source} is no name that AugReg published; did you mean {near[0]}?')
  return _cached(catalogue.url(source), source, near)


def public_url(address: str) -> str:
  """gs://bucket/file as the bucket's public https address; other addresses as they are."""
  if not address.startswith('gs://'):
    return address
  return catalogue.BUCKETS_URL + urllib.parse.quote(address.removeprefix('gs://'))


def _cached(url: str, name: str, near: list[str]) -> pathlib.Path:
  parsed = urllib.parse.urlsplit(url)
  place = parsed.netloc.replace(':', '_') + urllib.parse.unquote(parsed.path)
  path = (cache.directory() / place.lstrip('/')).resolve()
  if not path.is_relative_to(cache.directory().resolve()):
    raise UserError(f'{name} names a file outside of the cache; give a plain address.')
  path.parent.mkdir(parents=True, exist_ok=True)
  with open(path.with_name(path.name + '.lock'), 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes one downloads, the others wait
    if not _is_complete(path, path):
      _Download(url, name, path, near).run()
  return path


def _is_complete(path: pathlib.Path, copy: pathlib.Path) -> bool:
  """Whether `copy` has the size that the server gave for `path`."""
  try:
    return copy.stat().st_size == json.loads(_record(path).read_text())['size']
  except (OSError, ValueError, KeyError):
    return False


def _record(path: pathlib.Path) -> pathlib.Path:
  """Where the file's size and version are written."""
  return path.with_name(path.name + '.json')


class _Download:
  """One file, from the first byte that is missing to the last."""

  def __init__(self, url: str, name: str, path: pathlib.Path, near: list[str]):
    self._url, self._name, self._path, self._near = url, name, path, near
    self._partial = path.with_name(path.name + '.partial')

  def run(self) -> None:
    """Raises UserError where it cannot be completed."""
    for attempt in range(_ATTEMPTS):
      if attempt:
        time.sleep(min(2**attempt / 4, 4))
      try:
        if self._transfer():
          self._partial.replace(self._path)
          return
      except urllib.error.HTTPError as error:
        if error.code == 416:  # the part we have is not part of the file any more
          self._partial.unlink(missing_ok=True)
        elif error.code < 500:
          raise UserError(self._refused(error.code)) from error
        failure = f'the server answers {error.code}'
      except urllib.error.URLError as error:
        failure = f'the server cannot be reached ({error.reason})'
      except (OSError, http.client.HTTPException) as error:
        failure = f'the connection broke off ({str(error).strip() or type(error).__name__})'
      else:
        failure = 'the connection broke off'
    done = self._partial.stat().st_size if self._partial.exists() else 0
    kept = f' after {done:,} bytes, which are kept: the same again goes on from there' if done else ''
    hint = '' if done else '; check the network, or give a local path' + self._suggestion()
    raise UserError(f'{self._name} could not be downloaded from {self._url}: {failure}{kept}{hint}.')

  def _transfer(self) -> bool:
    """Appends to the partial file what is missing; whether it is complete."""
    if _is_complete(self._path, self._partial):  # killed before it was renamed
      return True
    have = self._partial.stat().st_size if self._partial.exists() else 0
    headers = {'Accept-Encoding': 'identity'}
    version = self._version() if have else None
    if version is None:
      have = 0
    else:
      headers |= {'Range': f'bytes={have}-', 'If-Range': version}
    with urllib.request.urlopen(
      urllib.request.Request(self._url, headers=headers), timeout=_TIMEOUT
    ) as answer:
      if answer.status != 206:  # the whole file: the server has another version, or knows no ranges
        have = 0
      size = self._size(answer, have)
      record = {'url': self._url, 'size': size, 'version': _version_of(answer)}
      _record(self._path).write_text(json.dumps(record))
      with open(self._partial, 'ab' if have else 'wb') as file, self._progress(have, size) as bar:
        while chunk := answer.read(_CHUNK):
          file.write(chunk)
          bar.update(len(chunk))
    found = self._partial.stat().st_size
    if size is not None and found > size:
      self._partial.unlink()
      return False
    if size is None:
      _record(self._path).write_text(json.dumps({'url': self._url, 'size': found, 'version': None}))
    return size is None or found == size

  def _version(self) -> str | None:
    """Of the file that the partial one is the beginning of, if the server told."""
    try:
      return json.loads(_record(self._path).read_text())['version']
    except (OSError, ValueError, KeyError):
      return None

  @staticmethod
  def _size(answer: http.client.HTTPResponse, have: int) -> int | None:
    """Bytes of the whole file."""
    length = answer.headers.get('Content-Length')
    return None if length is None else have + int(length)

  def _progress(self, have: int, size: int | None) -> tqdm.tqdm:
    return tqdm.tqdm(
      desc=self._path.name,
      initial=have,
      total=size,
      unit='B',
      unit_scale=True,
      disable=not sys.stderr.isatty(),
    )

  def _refused(self, code: int) -> str:
    if code in (403, 404, 410):
      return f'There is no public file {self._name} ({self._url} answers {code}){self._suggestion()}.'
    return f'{self._name} cannot be downloaded: {self._url} answers {code}; check the address.'

  def _suggestion(self) -> str:
    return f'; perhaps {" or ".join(self._near)} is meant' if self._near else ''


def _version_of(answer: http.client.HTTPResponse) -> str | None:
  """What If-Range takes: a strong ETag, or the date of the last change."""
  etag = answer.headers.get('ETag')
  if etag and not etag.startswith('W/'):
    return etag
  return answer.headers.get('Last-Modified')
