"""What a file is, by its first bytes: servers send login and error pages as if they were files."""

import pathlib
import zipfile
from typing import Literal

Kind = Literal['checkpoint', 'json', 'text']

_NAMES: dict[Kind, str] = {'checkpoint': 'a checkpoint', 'json': 'a JSON file', 'text': 'a text file'}
_LONGEST_HEADER = 100_000_000  # bytes of a safetensors header, the format's own limit


def fault(path: pathlib.Path, kind: Kind) -> str | None:
  """Why a file is not of a kind, to follow its name in a sentence ("is empty"); None if it is."""
  with open(path, 'rb') as file:
    start = file.read(1024)
  text = start.removeprefix(b'\xef\xbb\xbf').lstrip().lower()
  if not start:
    return 'is empty (0 bytes)'
  if text.startswith((b'<!doctype', b'<html', b'<?xml', b'<head', b'<script', b'<!--')):
    return f'is a web page, not {_NAMES[kind]}'
  if kind == 'checkpoint' and start.startswith(b'PK'):
    return None if zipfile.is_zipfile(path) else 'is a damaged .npz (the end of the archive is missing)'
  sound = {
    'checkpoint': _is_safetensors(start, path.stat().st_size),
    'json': text.startswith((b'{', b'[')),
    'text': b'\0' not in start,
  }
  return None if sound[kind] else f'is not {_NAMES[kind]} (it begins with {start[:16]!r})'


def _is_safetensors(start: bytes, size: int) -> bool:
  """Eight bytes tell the length of the JSON header that follows them."""
  header = int.from_bytes(start[:8], 'little')
  return start[8:9] == b'{' and header <= min(size - 8, _LONGEST_HEADER)
