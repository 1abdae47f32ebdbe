"""Servers that stall, or drip the body, are left in bounded time, and resumed."""

import http.server
import re
import time

import pytest
from hostile_server import LENGTH, SHORT, A, Request, chunked, get, refusal

from vit_jax.pretrained.http_download import Patience


def silent_before_the_header(request: Request) -> None:
  request.closing.wait(30)


def silent_in_the_header(request: Request) -> None:
  request.write(b'HTTP/1.1 200 OK\r\nContent-Le')
  request.closing.wait(30)


def silent_in_the_body(request: Request) -> None:
  request.send(200, A[:5000], Content_Length=LENGTH)
  request.closing.wait(30)


def endless_headers(request: Request) -> None:
  request.write(b'HTTP/1.1 200 OK\r\n')
  request.drip(b'X-Padding: 1\r\n', 0.0001)


def dripping_body(request: Request) -> None:
  request.send(200, Content_Length=LENGTH)
  request.drip()


def dripping_chunks(request: Request) -> None:
  chunked(request, b'', b'')
  request.drip(b'1\r\nx\r\n')


@pytest.mark.parametrize(
  'behave',
  [
    silent_before_the_header,
    silent_in_the_header,
    silent_in_the_body,
    endless_headers,
    dripping_body,
    dripping_chunks,
  ],
)
def test_a_server_that_stalls_is_left(server, tmp_path, behave):
  server.behave = behave
  began = time.monotonic()
  sentence = refusal(tmp_path, server.url(), patience=SHORT)
  assert re.search('broke off|less than 1024 bytes per second', sentence)
  assert time.monotonic() - began < 4 * SHORT.attempts * SHORT.timeout + 1


def test_a_server_that_stalled_is_resumed(server):
  def behave(request: Request) -> None:
    request.send_range(A, until=None if request.number else 50_000)
    if not request.number:
      request.closing.wait(30)

  server.behave = behave
  assert get(server.url(), patience=Patience(timeout=1, attempts=2, pause=0)) == A
  assert server.ranges() == [None, 'bytes=50000-']


def test_a_port_where_nobody_answers_is_left(server, tmp_path):
  """Connections wait in the listening socket's queue, which no thread serves."""
  with http.server.HTTPServer(('localhost', 0), http.server.BaseHTTPRequestHandler) as deaf:
    sentence = refusal(tmp_path, f'http://localhost:{deaf.server_port}/model.npz', patience=SHORT)
  assert 'broke off (timed out)' in sentence
