"""Downloads from servers that break, lie and stall: the right file or one sentence, in bounded time.

Whatever a server sends, a file is in the cache only if it has the bytes of one version that the server
has, and an error is one sentence.
"""

import gzip
import random
import re
import time
from collections.abc import Callable

import pytest
from hostile_server import LENGTH, SHORT, A, B, Request, chunked, get, refusal, version

from vit_jax.foundation.errors import UserError
from vit_jax.pretrained.http_download import Patience

# Resumed downloads.


def broken_at(position: int, then: Callable[[Request], None]) -> Callable[[Request], None]:
  """The first answer breaks off at a position; `then` gives the others."""

  def behave(request: Request) -> None:
    if request.number:
      then(request)
    else:
      request.send_range(A, until=position)

  return behave


def span(first: int, last: int, size: int | str) -> str:
  return f'bytes {first}-{last}/{size}'


# What a server answers to `Range: bytes=1000-` although it has not the rest of the file that began: headers, bytes.
GOOD_PART = {'Content_Range': span(1000, LENGTH - 1, LENGTH), 'ETag': '"1"'}
WRONG_PARTS = {
  'of another first byte': ({'Content_Range': span(999, LENGTH - 1, LENGTH)}, B[1000:]),
  'of another size': ({'Content_Range': span(1000, LENGTH, LENGTH + 1)}, B[1000:]),
  'of an unknown size': ({'Content_Range': span(1000, LENGTH - 1, '*')}, B[1000:]),
  'of a shorter range': ({'Content_Range': span(1000, 1999, LENGTH)}, B[1000:]),
  'of no range': ({'Content_Range': None}, B[1000:]),
  'of a number too long': ({'Content_Range': span(1000, LENGTH - 1, '1' * 5000)}, B[1000:]),
  'of another ETag': ({'ETag': '"2"'}, B[1000:]),
  'of a weak ETag': ({'ETag': 'W/"1"'}, B[1000:]),
  'with more bytes than announced': ({}, B[1000:] + b'more'),
  'that it does not have': ({'status': 416, 'Content_Range': f'bytes */{LENGTH}'}, b''),
}


@pytest.mark.parametrize(('headers', 'body'), WRONG_PARTS.values(), ids=WRONG_PARTS)
def test_a_part_of_another_file_is_never_appended(server, headers, body):
  """It begins again, and the second whole answer is right."""

  def behave(request: Request) -> None:
    if request.first:
      request.send(**({'status': 206, 'body': body} | GOOD_PART | headers))
    else:
      request.send_range(B)

  server.behave = broken_at(1000, behave)
  assert get(server.url()) == B
  assert server.ranges() == [None, 'bytes=1000-', None]


def test_a_part_that_was_not_asked_for_is_no_file(server, tmp_path):
  server.behave = lambda request: request.send(206, A[1000:], **GOOD_PART)
  assert 'sends a part of it (status 206)' in refusal(tmp_path, server.url())
  server.behave = lambda request: request.send_range(A)
  assert get(server.url()) == A


def test_a_part_with_fewer_bytes_than_announced_is_completed(server):
  def behave(request: Request) -> None:
    if request.number == 1:
      request.send(206, A[1000:2000], **GOOD_PART)
    else:
      request.send_range(A)

  server.behave = broken_at(1000, behave)
  assert get(server.url()) == A
  assert server.ranges() == [None, 'bytes=1000-', 'bytes=2000-']


@pytest.mark.parametrize('etag', ['W/"1"', None, 'unquoted', '"a\tb"'])
def test_without_a_strong_etag_nothing_is_resumed(server, etag):
  """Not by its date either: two versions may be of the same second."""
  date = 'Wed, 01 Jan 2020 00:00:00 GMT'

  def behave(request: Request) -> None:
    content, until = (B, None) if request.number else (A, 1000)
    request.send(200, content[:until], Content_Length=LENGTH, ETag=etag, Last_Modified=date)

  server.behave = behave
  assert get(server.url()) == B
  assert server.ranges() == [None, None]


@pytest.mark.parametrize('seed', range(10))
def test_random_breaks_and_changes_give_one_whole_version(server, seed):
  """Each answer breaks off anywhere, ignores the range, changes the file, fails or sends a wrong part."""
  rng = random.Random(seed)
  current = [1]

  def behave(request: Request) -> None:
    if rng.random() < 0.3:
      current[0] += 1
    content, etag = version(current[0]), f'"{current[0]}"'
    until = rng.randrange(LENGTH) if request.number < 7 else None
    action = rng.random() if until is not None else 1
    if action < 0.1:
      request.send(503)
    elif action < 0.2 and request.first:
      wrong = max(0, request.first + rng.choice([-1, 1]))
      request.send(206, content[wrong:], ETag=etag, Content_Range=span(wrong, LENGTH - 1, LENGTH))
    elif action < 0.3 and request.first:
      given = span(request.first, LENGTH - 1, LENGTH)
      request.send(206, content[request.first :], ETag=etag, Content_Range=given)  # whatever If-Range says
    elif action < 0.4:
      request.send(200, content[:until], Content_Length=LENGTH, ETag=etag)
    elif action < 0.5:
      chunked(request, content[:until], ETag=etag)
    else:
      request.send_range(content, etag, until)

  server.behave = behave
  found = None
  for _ in range(10):
    try:
      found = get(server.url())
      break
    except UserError as error:
      assert '\n' not in str(error)
  assert found in [version(number) for number in range(1, current[0] + 1)]


def test_a_record_that_is_damaged_begins_again(server, tmp_path):
  server.behave = lambda request: request.send_range(A, until=1000)
  records = ['', '[]', 'null', '{"size": 1}', '{"size": 1, "etag": []}', '{"size": "x", "etag": 5}']
  records += ['{"size": null, "etag": "a\\nb"}']
  for damaged in records:
    refusal(tmp_path, server.url())
    (record,) = tmp_path.rglob('.record.json')
    record.write_text(damaged)
  server.behave = lambda request: request.send_range(B)
  assert get(server.url()) == B


# Lengths and encodings.


@pytest.mark.parametrize('end', [b'', b'0', b'ff\r\nabc', b'-5\r\n', b'ffffffffffffffff\r\nabc'])
def test_chunks_without_their_end_are_no_file(server, tmp_path, end):
  server.behave = lambda request: chunked(request, A[:30_000], end)
  assert re.search('the connection broke off|damaged', refusal(tmp_path, server.url()))


def test_chunks_give_the_whole_file_also_when_they_broke_off(server):
  server.behave = lambda request: chunked(request, A)
  assert get(server.url('/whole.npz')) == A
  server.behave = lambda request: (
    chunked(request, A[:30_000], b'', ETag='"1"') if request.number == 1 else request.send_range(A)
  )
  assert get(server.url()) == A
  assert server.ranges() == [None, None, 'bytes=30000-']


@pytest.mark.parametrize('length', ['abc', '', '-1', '0x10', '٣', '9' * 5000, f'{LENGTH}, {LENGTH + 1}'])
def test_a_length_that_is_no_number_is_refused(server, tmp_path, length):
  """The whole file or the beginning of one: nobody can tell."""
  encoded = length.encode().decode('latin-1')
  server.behave = lambda request: request.send(200, A[:50_000], Content_Length=encoded)
  assert re.search('does not tell its length|unmatching', refusal(tmp_path, server.url()))


@pytest.mark.parametrize('encoding', [None, 'gzip, chunked', 'identity'])
def test_a_cut_file_without_a_length_is_refused(server, tmp_path, encoding):
  headers = {'Content_Length': None, 'Transfer_Encoding': encoding}
  server.behave = lambda request: request.send(200, A[:50_000], **headers)
  assert 'does not tell its length' in refusal(tmp_path, server.url())


def test_a_body_longer_than_its_length_ends_there(server):
  server.behave = lambda request: request.send(200, A + b'more', Content_Length=LENGTH)
  assert get(server.url()) == A


@pytest.mark.parametrize('encoding', ['GZIP', 'gzip, gzip', 'nonsense'])
def test_a_compressed_answer_is_refused(server, tmp_path, encoding):
  """We ask for none, and its length would be that of other bytes."""
  body = gzip.compress(A)
  server.behave = lambda request: request.send(200, body, Content_Encoding=encoding)
  assert 'the server compresses it' in refusal(tmp_path, server.url())
  assert server.requests[0].headers['accept-encoding'] == 'identity'


# Answers that are no HTTP.


@pytest.mark.parametrize(
  'answer',
  [
    b'',
    b'HTTP/1.1 abc OK\r\n\r\n',
    b'HTTP/9.9 200 OK\r\n\r\n' + A,
    b'HTTP/1.1 200 OK\r\n' + b'X: 1\r\n' * 500,
    b'HTTP/1.1 200 OK\r\nX: ' + b'1' * 100_000,
    b'HTTP/1.1 204 OK\r\n\r\n',
    b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n' + A,
  ],
)
def test_an_answer_that_is_no_http_is_one_sentence(server, tmp_path, answer):
  server.behave = lambda request: request.write(answer)
  assert 'download' in refusal(tmp_path, server.url())


# Servers that stall, or drip the body.


def silent_before_the_header(request: Request) -> None:
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


@pytest.mark.parametrize(
  'behave', [silent_before_the_header, silent_in_the_body, endless_headers, dripping_body]
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
