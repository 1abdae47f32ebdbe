"""Damages files at random: bytes of any file, values of JSON, the next case always a function of its seed."""

import json
import random
from collections.abc import Callable
from typing import Any

PAYLOAD = 'fuzz_payload'  # a module that leaves a mark when it is imported
_HOSTILE: tuple[Any, ...] = (
  *(None, True, False, 0, -1, 1, 2**31, 10**9, 2**63, 10**400, 0.5, -0.0, 1e308, float('nan'), float('inf')),
  *('', 'x', '\0', '\ud800', '../outside', '/dev/zero', '/etc/passwd', 'a\nb', '$x_$', '%s{0}', 'x' * 10_000),
  *(f'{PAYLOAD}.Text', f'{PAYLOAD}:Text', f'!!python/name:{PAYLOAD}.Text', '1e9', '-1', 'NaN'),
  *([], {}, [None], [[]], {'': ''}, [10**9] * 3, {'type': f'{PAYLOAD}.Text'}),
)
_WORDS = (
  *(b'\0' * 4, b'\xff' * 4, b'\xff' * 8, b'\x7f' + b'\xff' * 7, b'\0' * 512),
  *(b'"', b'[' * 200, b'\n', b','),
)


def mutated(content: bytes, rng: random.Random, is_json: bool) -> bytes:
  """One to three damages of a file's content."""
  for _ in range(rng.choice((1, 1, 1, 2, 3))):
    if is_json and rng.random() < 0.7:
      content = _json(content, rng)
    elif content:
      content = rng.choice(_BYTES)(content, rng)
  return content


def _json(content: bytes, rng: random.Random) -> bytes:
  """One value replaced or removed, of JSON or of one line of JSON lines; others are left as they are."""
  lines = content.splitlines(keepends=True)
  number = rng.randrange(len(lines)) if lines else 0
  try:
    whole, values = content, json.loads(content)
  except (ValueError, RecursionError):
    try:
      whole, values = lines[number], json.loads(lines[number])
    except (ValueError, IndexError, RecursionError):
      return content
  if not isinstance(values, dict | list) or not values:
    return content
  holder: Any = values
  while True:
    key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    if not isinstance(holder[key], dict | list) or not holder[key] or rng.random() < 0.15:
      break
    holder = holder[key]
  if rng.random() < 0.15:
    del holder[key]
  elif isinstance(holder, dict) and rng.random() < 0.1:
    holder[rng.choice(('', '../x', 'pythonClassName', 'x' * 1000))] = holder.pop(key)
  else:
    holder[key] = rng.choice(_HOSTILE)
  changed = json.dumps(values).encode()
  if rng.random() < 0.02:
    changed = changed.replace(b':', b':' + b'[' * 100_000, 1)
  return changed if whole is content else content.replace(whole, changed + b'\n', 1)


def _flip(content: bytes, rng: random.Random) -> bytes:
  changed = bytearray(content)
  for _ in range(rng.choice((1, 1, 2, 8))):
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
  return bytes(changed)


def _insert(content: bytes, rng: random.Random) -> bytes:
  first = rng.randrange(len(content) + 1)
  return content[:first] + rng.choice((*_WORDS, rng.randbytes(8))) + content[first:]


def _replace(content: bytes, rng: random.Random) -> bytes:
  word, first = rng.choice(_WORDS), rng.randrange(len(content))
  return (content[:first] + word + content[first + len(word) :])[: len(content)]


Damage = Callable[[bytes, random.Random], bytes]


def _of_span(change: Damage) -> Damage:
  """What changes a part of the content."""

  def damage(content: bytes, rng: random.Random) -> bytes:
    first = rng.randrange(len(content))
    last = min(first + rng.choice((1, 2, 4, 16, 200, 5000)), len(content))
    return content[:first] + change(content[first:last], rng) + content[last:]

  return damage


_BYTES: tuple[Damage, ...] = (
  *(_flip, _flip, _flip),
  _of_span(lambda part, rng: rng.randbytes(len(part))),  # overwritten
  _of_span(lambda part, rng: bytes(len(part))),  # zeros
  _of_span(lambda part, rng: b''),  # removed
  _of_span(lambda part, rng: part + part * rng.choice((1, 3))),  # repeated
  *(_insert, _replace),
  lambda content, rng: content[: rng.randrange(len(content))],  # cut short
  lambda content, rng: content + rng.choice((b'\0', content, rng.randbytes(100), b'\0' * 10_000)),
)
