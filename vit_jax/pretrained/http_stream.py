"""An HTTP answer with time limits that hold, whatever the server does.

A socket's timeout begins again with each byte that arrives, so a header, a chunk's size or a trailer that
comes byte by byte never exceeds it; looking up a host has no timeout at all. So a thread reads, and its
caller waits no longer than it wants.
"""

import queue
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import urllib3
from urllib3 import exceptions
from urllib3.util import parse_url

_CHUNK = 2**20
_QUEUED = 8  # chunks between the two threads
_REDIRECTS = 10
_UNREACHABLE = (
  exceptions.NewConnectionError,
  exceptions.ConnectTimeoutError,
  exceptions.ProxyError,
  exceptions.SSLError,
)
_SLOWEST = 1024  # bytes per second: a server that sends fewer has stalled


class ConnectionFailedError(Exception):
  """The server is out of reach, broke off or stalled, and may answer the next time. The text says which."""


class UnusableError(Exception):
  """The address or what the server answers makes no sense. The text says why."""


class Stream:
  """The answer to a GET request, read by a thread of its own.

  Attributes:
    status: the answer's status, after all redirects.
    headers: its headers, of names in any case.
  """

  def __init__(self, url: str, headers: Mapping[str, str], timeout: float):
    """Waits for the answer's header.

    Args:
      url: an http or https address.
      headers: the request's.
      timeout: seconds without a byte, or with less than 1 kB/s, until the server has stalled; the header may
        take twice as long.

    Raises:
      ConnectionFailedError: there is no answer.
      UnusableError: the address, or one that the server redirects to, is not valid.
    """
    self._timeout = timeout
    # The answer, the parts of its body, then an empty one; an error takes the place of what cannot come.
    self._items: queue.Queue[Any] = queue.Queue(_QUEUED)
    self._closed = threading.Event()
    threading.Thread(target=self._read, args=(url, headers), daemon=True).start()
    try:
      answer = self._next(2 * timeout, f'the server did not answer within {2 * timeout:g} s')
    except BaseException:
      self.close()
      raise
    self.status, self.headers = answer.status, answer.headers

  def chunks(self) -> Iterator[bytes]:
    """The body, undecoded, in parts of any size.

    Raises:
      ConnectionFailedError: the body broke off before its end, or comes too slowly.
    """
    slow = f'the server sends less than {_SLOWEST} bytes per second'
    due, deadline = 0.0, 0.0
    while True:
      if due <= 0:
        due, deadline = self._timeout * _SLOWEST, time.monotonic() + self._timeout
      chunk = self._next(deadline - time.monotonic(), slow)
      if not chunk:
        return
      yield chunk
      due -= len(chunk)

  def __enter__(self) -> 'Stream':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """Lets the thread end; one that a hostile server holds up ends with the process."""
    self._closed.set()
    while not self._items.empty():  # makes room for what the thread may be waiting to put
      self._items.get_nowait()

  def _next(self, seconds: float, complaint: str) -> Any:
    """What the thread puts next; a ConnectionFailedError with the complaint if that takes longer."""
    try:
      item = self._items.get(timeout=max(0, seconds))
    except queue.Empty:
      raise ConnectionFailedError(complaint) from None
    if isinstance(item, Exception):
      raise item
    return item

  def _read(self, url: str, headers: Mapping[str, str]) -> None:
    """Runs in the thread: reads the answer and puts it, part by part."""
    try:
      with _open(url, headers, self._timeout) as answer:
        self._items.put(answer)
        while not self._closed.is_set() and (chunk := answer.read1(_CHUNK, decode_content=False)):
          self._items.put(chunk)
      self._items.put(b'')
    except UnusableError as error:
      self._items.put(error)
    except ValueError as error:  # urllib3's errors of addresses too
      self._items.put(UnusableError(f'it is not a valid address ({_reason(error)})'))
    except _UNREACHABLE as error:
      self._items.put(ConnectionFailedError(f'the server cannot be reached ({_reason(error)})'))
    except Exception as error:
      self._items.put(ConnectionFailedError(f'the connection broke off ({_reason(error)})'))


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
      raise UnusableError(f'the server redirects to {url}, which is not https')
  raise UnusableError(f'the server redirects more than {_REDIRECTS} times')


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
