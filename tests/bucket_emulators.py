"""Emulators of Google's and Amazon's buckets on this machine, behind a proxy that injects faults."""

import contextlib
import functools
import http.client
import http.server
import json
import logging
import pathlib
import socket
import struct
import threading
import time
import types
import urllib.parse
from collections.abc import Iterator

import pytest

_CONNECTIONS = (
  128  # that wait to be accepted; with Python's five, some of many at a time would wait for seconds
)


class FaultyProxy(http.server.ThreadingHTTPServer):
  """Passes requests on to a server, but for the next `faults`: a status, 'cut' or 'stall'.

  Faults befall requests of objects' bytes only, and only where the name has `faulty` in it. `ranges` has the Range of
  each of those requests. The next `write_faults`, which are statuses, befall requests that write. Writes on the
  condition that an object has a generation, which the emulator of Google's buckets does not know, are refused here
  where it has another one.
  """

  daemon_threads = True
  request_queue_size = _CONNECTIONS

  def __init__(self, port: int):
    super().__init__(('127.0.0.1', 0), _Handler)
    self.port = port
    self.faults: list[int | str] = []
    self.faulty = ''
    self.stalled_seconds = 3.0  # of 'stall'
    self.ranges: list[str | None] = []
    self.write_faults: list[int] = []
    self.writing = threading.Lock()

  @property
  def url(self) -> str:
    return f'http://127.0.0.1:{self.server_port}'

  def handle_error(self, request, client_address) -> None:
    """Clients that hang up are part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  disable_nagle_algorithm = True  # the body does not wait for the header's acknowledgement
  wbufsize = -1
  server: FaultyProxy

  def handle_expect_100(self) -> bool:
    done = super().handle_expect_100()
    self.wfile.flush()  # or the client, which waits for this, would never send the body
    return done

  def handle_any(self) -> None:
    length = int(self.headers.get('Content-Length', 0))
    body = self.rfile.read(length)
    if len(body) < length:  # a client that was killed; the server would wait for the rest
      self.close_connection = True
      return
    address = urllib.parse.urlsplit(self.path)
    query = urllib.parse.parse_qs(address.query)
    reads = self.command == 'GET' and (
      query.get('alt') == ['media']
      or ('alt' not in query and 'list-type' not in query and '/b/' not in self.path)
    )
    fault = None
    if reads:
      self.server.ranges.append(self.headers.get('Range'))
      fault = self.server.faults.pop(0) if self.server.faults and self.server.faulty in self.path else None
    if self.command in ('POST', 'PUT') and self.server.write_faults:
      fault = self.server.write_faults.pop(0)
    if isinstance(fault, int):
      self._answer(fault, [], b'')
      return
    expected = query.get('ifGenerationMatch', [None])[0]
    with self.server.writing if expected else contextlib.nullcontext():
      if expected and expected != self._generation(address.path, query['name'][0]):
        self._answer(412, [], b'')
        return
      answer, content = self._passed_on(self.command, self.path, body, dict(self.headers))
    dropped = ('transfer-encoding', 'connection', 'content-length', 'server', 'date')
    headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in dropped]
    if self.command == 'HEAD':
      headers.append(('Content-Length', answer.headers.get('Content-Length', '0')))
    if fault == 'stall':
      time.sleep(self.server.stalled_seconds)
    self._answer(answer.status, headers, content, cut=fault == 'cut')

  def _passed_on(
    self, command: str, path: str, body: bytes, headers: dict[str, str]
  ) -> tuple[http.client.HTTPResponse, bytes]:
    """The server's answer and its content."""
    connection = http.client.HTTPConnection('127.0.0.1', self.server.port)
    with contextlib.closing(connection):
      connection.request(command, path, body, headers)
      answer = connection.getresponse()
      return answer, answer.read()

  def _generation(self, path: str, name: str) -> str:
    """That of an object; '0': there is none."""
    place = f'{path.removeprefix("/upload")}/{urllib.parse.quote(name, safe="")}'
    answer, content = self._passed_on('GET', place, b'', {})
    return '0' if answer.status == 404 else json.loads(content)['generation']

  do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = handle_any  # noqa: N815

  def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, cut: bool = False) -> None:
    self.send_response(status)
    for name, value in headers:
      self.send_header(name, value)
    if self.command != 'HEAD':
      self.send_header('Content-Length', str(len(content)))
    self.end_headers()
    self.wfile.write(content[: len(content) // 2] if cut else content)
    if cut:  # a reset, not a polite end
      self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
      self.connection.close()
      self.close_connection = True

  def log_message(self, *unused) -> None:
    pass


@contextlib.contextmanager
def google() -> Iterator[FaultyProxy]:
  """A proxy to an emulator of Google's buckets, which has one called 'bucket'."""
  emulator = _google_emulator().create_server('127.0.0.1', 0, in_memory=True, default_bucket='bucket')
  emulator._storage._write_config_to_file = lambda: None  # for its next start: all names, at every change
  emulator.start()
  emulator._api._httpd.socket.listen(_CONNECTIONS)
  try:
    with _proxy(emulator._api._httpd.server_address[1]) as proxy:
      yield proxy
  finally:
    emulator.stop()


@functools.cache
def _google_emulator() -> types.ModuleType:
  """The emulator's server, mended: of an object that ends with '\\r' it would lose that byte."""
  server = pytest.importorskip('gcp_storage_emulator.server')
  logging.getLogger('gcp_storage_emulator').setLevel(logging.ERROR)
  read, end = server._read_raw_data, b'\n--==0==--'

  def read_whole(request: http.server.BaseHTTPRequestHandler) -> bytes | None:
    """A request's body; its parser takes '\\r' and the line feed before the last boundary for one end of a line."""
    body = read(request)
    return body.removesuffix(end) + b'\r' + end if body and body.endswith(end) else body

  server._read_raw_data = read_whole
  return server


@contextlib.contextmanager
def amazon() -> Iterator[FaultyProxy]:
  """A proxy to an emulator of Amazon's buckets; there is none yet."""
  server = pytest.importorskip('moto.server')
  logging.getLogger('werkzeug').setLevel(logging.ERROR)
  emulator = server.ThreadedMotoServer('127.0.0.1', 0, verbose=False)
  emulator.start()
  try:
    with _proxy(emulator.get_host_and_port()[1]) as proxy:
      yield proxy
  finally:
    emulator.stop()


@contextlib.contextmanager
def _proxy(port: int) -> Iterator[FaultyProxy]:
  with FaultyProxy(port) as proxy:
    thread = threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
      yield proxy
    finally:
      proxy.shutdown()


class Place:
  """A bucket to put objects into, and the proxy that the package reads them through."""

  def __init__(self, scheme: str, proxy: FaultyProxy):
    self.scheme, self.proxy = scheme, proxy
    direct = f'http://127.0.0.1:{proxy.port}'
    fresh = {'skip_instance_cache': True, 'use_listings_cache': False}
    if scheme == 'gs':
      from gcsfs.core import GCSFileSystem

      self._files = GCSFileSystem(token='anon', endpoint_url=direct, **fresh)
      self._options = {}
    else:
      from s3fs import S3FileSystem

      self._files = S3FileSystem(key='k', secret='s', endpoint_url=direct, **fresh)
      self._files.makedirs('bucket', exist_ok=True)
      self._options = {'ACL': 'public-read'}

  def put(self, name: str, content: bytes, *, public: bool = True) -> str:
    """Stores an object in the bucket; returns its address."""
    self._files.pipe_file(f'bucket/{name}', content, **(self._options if public else {}))
    return f'{self.scheme}://bucket/{name}'

  def get(self, name: str) -> bytes:
    """The content of an object in the bucket."""
    return self._files.cat_file(f'bucket/{name}')

  def remove(self, name: str) -> None:
    """Removes an object of the bucket."""
    self._files.rm_file(f'bucket/{name}')

  def names(self, folder: str = '') -> list[str]:
    """The names of the objects below a folder of the bucket."""
    return sorted(path.removeprefix('bucket/') for path in self._files.find(f'bucket/{folder}'))

  def put_folder(self, folder: pathlib.Path, name: str) -> str:
    """Stores a folder's files; returns its address."""
    for file in sorted(folder.rglob('*')):
      if file.is_file():
        self.put(f'{name}/{file.relative_to(folder).as_posix()}', file.read_bytes())
    return f'{self.scheme}://bucket/{name}'

  def get_folder(self, name: str, folder: pathlib.Path) -> pathlib.Path:
    """Copies the objects below a folder of the bucket to a folder; returns that."""
    for item in self.names(name):
      path = folder / item.removeprefix(f'{name}/')
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(self.get(item))
    return folder


@contextlib.contextmanager
def places(scheme: str, *, own: bool = False) -> Iterator[Place]:
  """A running emulator of a scheme, in the environment of this process.

  Args:
    scheme: 'gs' or 's3'.
    own: credentials are there, as writing needs them; else nobody's are in reach.
  """
  with pytest.MonkeyPatch.context() as patch, google() if scheme == 'gs' else amazon() as proxy:
    patch.delenv('GOOGLE_APPLICATION_CREDENTIALS', raising=False)
    for name in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'AWS_PROFILE'):
      patch.delenv(name, raising=False)
    patch.setenv('NO_GCE_CHECK', 'true')
    for name in ('GCE_METADATA_HOST', 'GCE_METADATA_IP'):
      patch.setenv(name, '127.0.0.1:1')  # refused at once
    patch.setenv('AWS_EC2_METADATA_DISABLED', 'true')
    for name in ('CLOUDSDK_CONFIG', 'AWS_CONFIG_FILE', 'AWS_SHARED_CREDENTIALS_FILE'):
      patch.setenv(name, '/nowhere')
    if own:
      patch.setenv('AWS_ACCESS_KEY_ID', 'k')
      patch.setenv('AWS_SECRET_ACCESS_KEY', 's')
    patch.setenv('STORAGE_EMULATOR_HOST' if scheme == 'gs' else 'AWS_ENDPOINT_URL', proxy.url)
    forget_earlier_emulators()
    yield Place(scheme, proxy)
    forget_earlier_emulators()


def forget_earlier_emulators() -> None:
  """fsspec keeps its file systems, each with the address of a server."""
  from gcsfs.core import GCSFileSystem
  from s3fs import S3FileSystem

  GCSFileSystem.clear_instance_cache()
  S3FileSystem.clear_instance_cache()
