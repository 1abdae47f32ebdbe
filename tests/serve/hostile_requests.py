"""Requests that are malformed, huge, slow or cut off, made at random."""

import base64
import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

from serving import FORM, form, photo, request

JSON = 'application/json'


class Attack(NamedTuple):
  name: str
  parts: list[bytes]  # what is sent
  pause: float = 0.0  # seconds between the parts
  leaves: bool = False  # whether the client closes the connection then, in place of waiting for the answer


def of(seed: int, most: int) -> Attack:
  """An attack on a service that takes `most` bytes."""
  rng = random.Random(seed)
  make = rng.choice(_ATTACKS)
  return make(rng, most)._replace(name=make.__name__.strip('_'))


def _noise(rng: random.Random, most: int) -> Attack:
  return Attack('', [rng.randbytes(rng.randrange(1, 3000))])


def _flipped_request(rng: random.Random, most: int) -> Attack:
  return Attack('', [_damaged(rng, request(form([photo(0)])))], leaves=True)


def _flipped_form(rng: random.Random, most: int) -> Attack:
  return Attack('', [request(_damaged(rng, form([photo(0), photo(1, 'jpeg')])))])


def _damaged_photo(rng: random.Random, most: int) -> Attack:
  kind = rng.choice(['png', 'jpeg', 'gif', 'webp', 'tiff', 'bmp', 'avif', 'ppm', 'eps', 'pdf', 'ico'])
  content = _damaged(rng, photo(0, kind))
  return Attack('', [request(form([content[: rng.randrange(len(content) + 1)]]), rng.choice(_PATHS))])


def _bomb(rng: random.Random, most: int) -> Attack:
  """A PNG of a hundred bytes that says it has 3.6 billion pixels, or some that the limit of pixels forbids."""
  side = rng.choice([60_000, 9_000, 2**31 - 1])
  header = struct.pack('>IIBBBBB', side, side, 8, 2, 0, 0, 0)
  chunks = [(b'IHDR', header), (b'IDAT', zlib.compress(bytes(1000))), (b'IEND', b'')]
  parts = [struct.pack('>I', len(d)) + n + d + struct.pack('>I', zlib.crc32(n + d)) for n, d in chunks]
  return Attack('', [request(form([b'\x89PNG\r\n\x1a\n' + b''.join(parts)]))])


def _many_parts(rng: random.Random, most: int) -> Attack:
  fields = form([b'']).replace(b'; filename="0.png"', b'') if rng.random() < 0.5 else form([b''])
  return Attack('', [request(fields[: -len('--a-boundary--\r\n')] * (most // 200) + b'--a-boundary--\r\n')])


def _wrong_json(rng: random.Random, most: int) -> Attack:
  sound = base64.b64encode(photo(0)).decode()
  texts = [
    '[' * 100_000,
    '{"images": ' + '[' * 100_000,
    '1' * 10_000,
    'NaN',
    '{"images": {}}',
    '{"images": [1]}',
    '',
  ]
  texts += [
    json.dumps({'images': images}) for images in ([], ['?'], [sound[:-3]], ['é'], [sound] * 65, [[sound]])
  ]
  texts += ['\ud800'.encode('utf-8', 'surrogatepass').decode('latin-1'), json.dumps({'images': ['\ud800']})]
  return Attack('', [request(rng.choice(texts).encode(), rng.choice(_PATHS), JSON)])


def _huge(rng: random.Random, most: int) -> Attack:
  if rng.random() < 0.5:
    return Attack(
      '', [request(b'x' * rng.randrange(most // 2), length=rng.choice([most + 1, 10**12, 10**30]))]
    )
  chunk = b'10000\r\n' + bytes(2**16) + b'\r\n'
  head = (
    b'POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n'
    % FORM.encode()
  )
  return Attack('', [head, *[chunk] * (2 * most // 2**16), b'0\r\n\r\n'])


def _wrong_head(rng: random.Random, most: int) -> Attack:
  sound = request(form([photo(0)]))
  changes = [
    (b'/predict', b'/' + b'x' * 100_000),
    (
      b'/predict',
      rng.choice(
        [b'/../../etc/passwd', b'/%00', b'/predict?top=-1', b'/predict?top=1e9', b'*', b'http://x/']
      ),
    ),
    (b'POST', rng.choice([b'PUT', b'DELETE', b'TRACE', b'OPTIONS', b'CONNECT', b'\x00', b'G' * 9000])),
    (b'Host: x', b'X: ' + b'y' * 200_000),
    (b'Host: x', rng.choice([b'Host', b'Transfer-Encoding: chunked', b'Expect: 100-continue'])),
    (
      b'multipart/form-data',
      rng.choice([b'text/plain', b'multipart/mixed', b'', b';;;', b'application/json']),
    ),
    (
      b'boundary=a-boundary',
      rng.choice([b'', b'boundary=', b'boundary=another', b'boundary=' + b'b' * 5000]),
    ),
    (b'Content-Length: ', rng.choice([b'Content-Length: -', b'Content-Length: 0x', b'Content-Length: 9, '])),
  ]
  return Attack('', [sound.replace(*rng.choice(changes), 1)], leaves=True)


def _cut_off(rng: random.Random, most: int) -> Attack:
  sound = request(form([photo(0)]))
  return Attack('', [sound[: rng.randrange(1, len(sound))]], leaves=True)


def _slow(rng: random.Random, most: int) -> Attack:
  sound = request(form([photo(0)]))
  begin = rng.randrange(1, len(sound) - 10)
  return Attack(
    '', [sound[:begin], *(sound[place : place + 1] for place in range(begin, begin + 9))], pause=0.4
  )


def _damaged(rng: random.Random, content: bytes) -> bytes:
  changed = bytearray(content)
  for _ in range(rng.randrange(1, 8)):
    changed[rng.randrange(len(changed))] = rng.randrange(256)
  return bytes(changed)


_PATHS = ('/predict', '/embed', '/attention')
_ATTACKS: list[Callable[[random.Random, int], Attack]] = [
  *(
    _noise,
    _flipped_request,
    _flipped_form,
    _damaged_photo,
    _damaged_photo,
    _bomb,
    _many_parts,
    _wrong_json,
    _huge,
  ),
  *(_wrong_head, _wrong_head, _cut_off, _slow),
]
