"""One file over HTTP: resumed where it broke off, and never put together from parts of different files.

No library we know does this: pooch and fsspec do not resume, and huggingface_hub's `http_get` appends any 206
without comparing its Content-Range and ETag. So urllib3 moves and counts the bytes, with its time-outs, and this module
decides whether they belong together.
"""

import contextlib
import dataclasses
import json
import pathlib
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping

import urllib3
from urllib3 import exceptions
from urllib3.util import parse_url

from vit_jax.pretrained import receiving

_CHUNK = 2**20
_SLOWEST = 1024  # bytes per second: a server that sends fewer has stalled
_REDIRECTS = 10
_UNREACHABLE = (
  exceptions.NewConnectionError,
  exceptions.ConnectTimeoutError,
  exceptions.ProxyError,
  exceptions.SSLError,
)
_TRANSIENT = (408, 425, 429)  # and every 5xx: the same request may succeed later
# RFC 9110: only a strong ETag says that two answers are parts of the same bytes. A date does not.
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e\x80-\xff]*"')
_NUMBER = re.compile(r'[0-9]{1,18}')


@dataclasses.dataclass(frozen=True)
class Patience:
  """How long a server may take."""

  timeout: float = 60  # seconds without a byte, or with less than 1 kB/s, until an attempt has failed
  attempts: int = 5  # how often the file is asked for
  pause: float = 0.5  # seconds before the second attempt; they double with each further one


class FailedError(Exception):
  """There is no file, and asking again would not help. The text says why, and `status` what the server answered."""

  def __init__(self, reason: str, status: int | None = None):
    super().__init__(reason)
    self.status = status


class InterruptedDownloadError(FailedError):
  """Every attempt failed. The text says why the last one did; `kept` bytes need no second transfer."""

  def __init__(self, reason: str, kept: int):
    super().__init__(reason)
    self.kept = kept


class _Passing(Exception):
  """The server is out of reach, broke off or stalled, and may answer the next time. The text says which."""


class _Partial:
  """The first bytes of a file, with the size and ETag of the whole, in a folder that outlives the process."""

  def __init__(self, folder: pathlib.Path):
    self.path = folder / '.partial'
    self._record = folder / '.record.json'
    self.size, self.etag = _read_record(self._record)

  @property
  def length(self) -> int:
    """Bytes that are there."""
    return self.path.stat().st_size if self.path.exists() else 0

  def is_complete(self) -> bool:
    return self.path.exists() and self.length == self.size

  def start(self, size: int | None, etag: str | None) -> None:
    """Forgets all bytes and describes the file that follows; `size` is None until it is known."""
    self.path.unlink(missing_ok=True)  # first: a crash after it must not leave old bytes under a new ETag
    self.describe(size, etag)

  def describe(self, size: int | None, etag: str | None) -> None:
    self.size, self.etag = size, etag
    self._record.write_text(json.dumps({'size': size, 'etag': etag}), encoding='utf-8')

  def keep_only_what_can_be_resumed(self) -> int:
    """Removes bytes that cannot be told from another version's; returns how many are kept."""
    if self.etag is None or (self.size is not None and self.length > self.size):
      self.path.unlink(missing_ok=True)
    return self.length


def is_complete(path: pathlib.Path) -> bool:
  """Whether a downloaded file has the size that was recorded beside it."""
  size, _ = _read_record(path.with_name('.record.json'))
  return path.is_file() and path.stat().st_size == size


def download(url: str, folder: pathlib.Path, title: str, patience: Patience) -> pathlib.Path:
  """Downloads a file from the first byte that the folder lacks.

  The folder exists, is for this http or https address alone, and the caller has locked it.

  Returns:
    The path of the whole file, which the caller renames.

  Raises:
    FailedError: the server does not give the file, or its answer or the address makes no sense.
    InterruptedDownloadError: every attempt failed.
    OSError: the folder cannot be written.
  """
  partial = _Partial(folder)
  reason = ''
  for attempt in range(patience.attempts):
    if attempt:
      time.sleep(patience.pause * 2 ** (attempt - 1))
    try:
      if not partial.is_complete():  # it is after a kill between its last byte and its renaming
        _attempt(url, partial, title, patience)
      return partial.path
    except _Passing as error:
      reason = str(error)
  raise InterruptedDownloadError(reason, partial.keep_only_what_can_be_resumed())


def _attempt(url: str, partial: _Partial, title: str, patience: Patience) -> None:
  """Asks for the bytes that are missing and appends them."""
  headers = {'Accept-Encoding': 'identity'}
  first = partial.keep_only_what_can_be_resumed()
  if first and partial.etag:
    headers |= {'Range': f'bytes={first}-', 'If-Range': partial.etag}
  with _network():
    answer = _open(url, headers, patience.timeout)
  with answer:
    if answer.status == 200:  # also to a Range: the file changed, or the server knows no ranges
      first = 0
      partial.start(_size(answer), _etag(answer))
    elif answer.status == 206 and first:
      _check_continuation(answer, partial)
    elif answer.status == 206:
      raise FailedError('the server sends a part of it (status 206) although asked for the whole')
    elif answer.status == 416 and first:
      partial.start(None, None)
      raise _Passing('the server does not have the missing part')
    elif answer.status in _TRANSIENT or answer.status >= 500:
      raise _Passing(f'the server answers {answer.status}')
    else:
      raise FailedError(f'the server answers {answer.status}', answer.status)
    encoding = answer.headers.get('Content-Encoding', 'identity')
    if encoding.lower() not in ('', 'identity'):
      raise FailedError(f'the server compresses it ({encoding}) although asked not to')
    receiving.append(partial.path, _body(answer, partial, patience.timeout), partial.size, title)
  if partial.size is None:  # chunked: complete, since urllib3 raises where the last chunk is missing
    partial.describe(partial.length, partial.etag)
  if partial.length != partial.size:
    raise _Passing('the connection broke off')


def _body(answer: urllib3.BaseHTTPResponse, partial: _Partial, timeout: float) -> Iterator[bytes]:
  """The answer's body, undecoded; _Passing where it breaks off, comes too slowly, or is longer than announced."""
  left = None if partial.size is None else partial.size - partial.length
  due, deadline = timeout * _SLOWEST, time.monotonic() + timeout
  while True:
    with _network():
      part = answer.read1(_CHUNK, decode_content=False)
    if not part:
      return
    due -= len(part)
    if due <= 0:
      due, deadline = timeout * _SLOWEST, time.monotonic() + timeout
    elif time.monotonic() > deadline:
      raise _Passing(f'the server sends less than {_SLOWEST} bytes per second')
    if left is not None:
      left -= len(part)
      if left < 0:
        partial.start(None, None)
        raise _Passing('the server sends more bytes than it announced')
    yield part


def _size(answer: urllib3.BaseHTTPResponse) -> int | None:
  """Bytes of the whole file, of an answer with status 200; None: chunks end it; FailedError: nothing does."""
  if answer.headers.get('Transfer-Encoding', '').lower() == 'chunked':
    return None
  length = answer.headers.get('Content-Length', '')
  if 'Transfer-Encoding' in answer.headers or not _NUMBER.fullmatch(length):
    raise FailedError(
      f'the server does not tell its length (Content-Length: {length or "none"}), so that a part of it could '
      'pass for the whole'
    )
  return int(length)


def _etag(answer: urllib3.BaseHTTPResponse) -> str | None:
  etag = answer.headers.get('ETag', '')
  return etag if _is_strong(etag) else None


def _check_continuation(answer: urllib3.BaseHTTPResponse, partial: _Partial) -> None:
  """Starts again unless an answer with status 206 has exactly the missing bytes of the same file."""
  span = answer.headers.get('Content-Range', '')
  size = span.rpartition('/')[2] if partial.size is None else str(partial.size)
  same = _etag(answer) == partial.etag and _NUMBER.fullmatch(size) is not None
  if not same or span != f'bytes {partial.length}-{int(size) - 1}/{size}':
    partial.start(None, None)
    raise _Passing('the server sends a part that does not belong to the one before')
  partial.describe(int(size), partial.etag)


def _read_record(path: pathlib.Path) -> tuple[int | None, str | None]:
  """The size and the ETag that the server told; None for what it did not, or where nothing is recorded."""
  try:
    record = json.loads(path.read_text(encoding='utf-8'))
    size, etag = record['size'], record['etag']
  except (OSError, ValueError, TypeError, KeyError):
    return None, None
  sound = isinstance(size, int | None) and (etag is None or _is_strong(etag))
  return (size, etag) if sound else (None, None)


def _is_strong(etag: object) -> bool:
  return isinstance(etag, str) and _STRONG_ETAG.fullmatch(etag) is not None


@contextlib.contextmanager
def _network() -> Iterator[None]:
  """Turns what urllib3 and the network raise into our errors."""
  try:
    yield
  except FailedError:
    raise
  except ValueError as error:  # urllib3's errors of addresses too
    raise FailedError(f'it is not a valid address ({_reason(error)})') from error
  except _UNREACHABLE as error:
    raise _Passing(f'the server cannot be reached ({_reason(error)})') from error
  except Exception as error:
    raise _Passing(f'the connection broke off ({_reason(error)})') from error


def _open(url: str, headers: Mapping[str, str], timeout: float) -> urllib3.BaseHTTPResponse:
  """The answer after all redirects, its body unread.

  We follow redirects ourselves: urllib3 would read the body of each, and one may be endless.
  """
  schemes = ('https', urllib.parse.urlsplit(url).scheme)  # never from https to http
  for _ in range(_REDIRECTS + 1):
    answer = _connections(url).request(
      'GET',
      url,
      headers=headers,
      redirect=False,
      retries=False,
      preload_content=False,
      timeout=urllib3.Timeout(connect=timeout / 4, read=timeout),
    )
    target = answer.get_redirect_location()
    if not target:
      return answer
    answer.close()
    url = urllib.parse.urljoin(url, target)
    if urllib.parse.urlsplit(url).scheme not in schemes:
      raise FailedError(f'the server redirects to {url}, which is not https')
  raise FailedError(f'the server redirects more than {_REDIRECTS} times')


def _connections(url: str) -> urllib3.PoolManager:
  """Connections through the proxy that the environment names for an address, or direct ones."""
  address = urllib.parse.urlsplit(url)
  proxy = urllib.request.getproxies().get(address.scheme)
  if not proxy or urllib.request.proxy_bypass(address.netloc):
    return urllib3.PoolManager()
  if '://' not in proxy:
    proxy = f'http://{proxy}'
  login = parse_url(proxy).auth
  headers = urllib3.make_headers(proxy_basic_auth=urllib.parse.unquote(login)) if login else None
  return urllib3.ProxyManager(proxy, proxy_headers=headers)


def _reason(error: BaseException) -> str:
  """The first line of the innermost error: urllib3's own wraps it into the names of Python objects."""
  while error.__cause__ is not None:
    error = error.__cause__
  return (str(error).strip() or type(error).__name__).splitlines()[0]
