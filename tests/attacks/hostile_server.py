"""A server that breaks, lies and stalls as a test says, and the downloads from it."""

import contextlib
import dataclasses
import http.server
import io
import random
import re
import threading
import zipfile
from collections.abc import Callable

import pytest

from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import download, file_kinds
from vit_jax.pretrained.http_download import Patience

PATIENCE = Patience(timeout=3, attempts=4, pause=0)
SHORT = Patience(timeout=0.4, attempts=2, pause=0)  # for servers that stall
# Seconds: each attempt waits for an answer at most 2 × timeout and for bytes at most about 2 × timeout.
BOUND = 4 * PATIENCE.attempts * PATIENCE.timeout + 2


def archive(content: bytes) -> bytes:
  """An .npz with these bytes in it."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w') as archive:
    archive.writestr(zipfile.ZipInfo('weights.npy'), content)  # of a fixed date: the same bytes each time
  return file.getvalue()


def version(number: int) -> bytes:
  """A file of 100 kB; every version has the same size and other bytes."""
  return archive(random.Random(number).randbytes(100_000))


A, B = version(1), version(2)
LENGTH = len(A)


@dataclasses.dataclass
class Request:
  """One request and the connection to answer it on."""

  path: str
  headers: dict[str, str]
  number: int
  write: Callable[[bytes], None]
  closing: threading.Event

  @property
  def first(self) -> int:
    """The first byte that is asked for."""
    asked = re.fullmatch(r'bytes=(\d+)-', self.headers.get('range', ''))
    return int(asked[1]) if asked else 0

  def send(self, status: int = 200, body: bytes = b'', **headers: str | int | None) -> None:
    """Sends an answer; a header of None is left out, and Content-Length is the body's unless it is given."""
    named = {name.replace('_', '-'): value for name, value in headers.items()}
    named = {'Content-Length': len(body)} | named
    lines = [f'{name}: {value}\r\n' for name, value in named.items() if value is not None]
    head = f'HTTP/1.1 {status} X\r\n{"".join(lines)}Connection: close\r\n\r\n'
    self.write(head.encode('latin-1') + body)

  def send_range(self, content: bytes, etag: str | None = '"1"', until: int | None = None) -> None:
    """Answers as a good server does, and breaks off after the byte `until` of the file."""
    first = self.first
    if first and self.headers.get('if-range') == etag:
      span = f'bytes {first}-{len(content) - 1}/{len(content)}'
      length = len(content) - first
      self.send(206, content[first:until], Content_Length=length, Content_Range=span, ETag=etag)
    else:
      self.send(200, content[:until], Content_Length=len(content), ETag=etag)

  def drip(self, byte: bytes = b'x', pause: float = 0.02) -> None:
    """One byte after the other, until the client or the test ends."""
    while not self.closing.wait(pause):
      self.write(byte)


class Server(http.server.ThreadingHTTPServer):
  """Answers each request by `behave`."""

  daemon_threads = True

  def __init__(self):
    super().__init__(('localhost', 0), Handler)
    self.requests: list[Request] = []
    self.closing = threading.Event()
    self.behave: Callable[[Request], None] = lambda request: request.send_range(A)

  def url(self, path: str = '/model.npz') -> str:
    return f'http://localhost:{self.server_port}{path}'

  def ranges(self) -> list[str | None]:
    return [request.headers.get('range') for request in self.requests]


class Handler(http.server.BaseHTTPRequestHandler):
  server: Server

  def do_GET(self) -> None:
    headers = {name.lower(): value for name, value in self.headers.items()}
    server = self.server
    request = Request(self.path, headers, len(server.requests), self._write, server.closing)
    server.requests.append(request)
    self.close_connection = True
    with contextlib.suppress(OSError):  # the client has gone
      server.behave(request)

  def _write(self, content: bytes) -> None:
    self.wfile.write(content)
    self.wfile.flush()

  def log_message(self, *_) -> None:
    pass


def chunked(
  request: Request, body: bytes, end: bytes = b'0\r\n\r\n', size: int = 3000, **headers: str | None
) -> None:
  """Sends an answer in chunks; without `end` it is cut at the border of two."""
  request.send(200, b'', Content_Length=None, Transfer_Encoding='chunked', **headers)
  for start in range(0, len(body), size):
    part = body[start : start + size]
    request.write(b'%x\r\n%s\r\n' % (len(part), part))
  request.write(end)


def get(address: str, kind: file_kinds.Kind = 'checkpoint', patience: Patience = PATIENCE) -> bytes:
  """The bytes that a download gives."""
  return download.local_file(address, kind, patience).read_bytes()


def refusal(
  tmp_path, address: str, kind: file_kinds.Kind = 'checkpoint', patience: Patience = PATIENCE
) -> str:
  """The sentence of a download that fails; then the cache has no file that a reader would take."""
  with pytest.raises(UserError) as error:
    download.local_file(address, kind, patience)
  sentence = str(error.value)
  assert sentence.endswith('.') and '\n' not in sentence and 'Traceback' not in sentence
  files = [file.name for file in (tmp_path / 'cache').rglob('*') if file.is_file()]
  assert all(name.startswith('.') for name in files)
  return sentence
