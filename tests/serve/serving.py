"""A service in a process of its own, and HTTP as it goes over the wire."""

import contextlib
import http.client
import io
import json
import pathlib
import re
import socket
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import fork_server
import numpy as np
from PIL import Image
from processes import HUNG, wait_until

BOUNDARY = 'a-boundary'
FORM = f'multipart/form-data; boundary={BOUNDARY}'


class Answer(NamedTuple):
  status: int
  content: Any  # JSON, or bytes
  headers: dict[str, str]


class Running(NamedTuple):
  """A service that runs."""

  port: int
  command: fork_server.Command
  log: pathlib.Path

  def ask(self, path: str, body: bytes | None = None, kind: str = FORM, method: str | None = None) -> Answer:
    """A request by a connection of its own; POST where there is a body."""
    connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=HUNG)
    with contextlib.closing(connection):
      headers = {} if body is None else {'Content-Type': kind}
      connection.request(method or ('GET' if body is None else 'POST'), path, body, headers)
      return read_answer(connection.getresponse())

  def connect(self) -> socket.socket:
    return socket.create_connection(('127.0.0.1', self.port), timeout=HUNG)

  def metric(self, name: str) -> float:
    text = self.ask('/metrics').content.decode()
    return float(re.search(rf'^{re.escape(name)} (\S+)$', text, re.MULTILINE)[1])


def read_answer(response: http.client.HTTPResponse) -> Answer:
  content, headers = response.read(), {name.lower(): value for name, value in response.getheaders()}
  is_json = headers.get('content-type', '').startswith('application/json')
  return Answer(response.status, json.loads(content) if is_json else content, headers)


@contextlib.contextmanager
def running(checkpoint: pathlib.Path | str, *flags: str, folder: pathlib.Path) -> Iterator[Running]:
  """`vit_jax serve` until the block ends; then SIGTERM must end it with exit code 0 and without a traceback."""
  log = folder / 'service.log'
  log.write_text('')
  command = fork_server.start('vit_jax.serve', str(checkpoint), '--port=0', *flags, cwd=folder, log=log)
  try:
    wait_until(lambda: 'Ready: ' in log.read_text(), lambda: command.poll() is None, log.read_text)
    yield Running(int(re.search(r'127.0.0.1:(\d+);', log.read_text())[1]), command, log)
    command.send_signal(15)
    assert command.wait(HUNG) == 0, log.read_text()[-2000:]
    assert 'Traceback' not in log.read_text(), log.read_text()[-2000:]
  finally:
    command.send_signal(9)


def photo(seed: int, kind: str = 'png', size: tuple[int, int] = (40, 30)) -> bytes:
  """An encoded photo of smooth colours, unlike those of other seeds."""
  small = np.random.default_rng(seed).integers(0, 256, (4, 3, 3), dtype=np.uint8)
  file = io.BytesIO()
  Image.fromarray(small).resize(size[::-1]).save(file, kind)
  return file.getvalue()


def form(photos: Sequence[bytes]) -> bytes:
  """Photos as the body of a form."""
  head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="photo"; filename="%d.png"\r\n\r\n'
  parts = [(head % number).encode() + content + b'\r\n' for number, content in enumerate(photos)]
  return b''.join([*parts, f'--{BOUNDARY}--\r\n'.encode()])


def request(body: bytes, path: str = '/predict', kind: str = FORM, length: int | None = None) -> bytes:
  """A whole request; `length`: what its head says of the body."""
  length = len(body) if length is None else length
  head = f'POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n'
  return head.encode() + body
