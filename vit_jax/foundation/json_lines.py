"""Files of JSON lines: an object a line, appended to while a run goes on.

Such a file outlives many processes: kills, power failures, full disks and editors. So a reader keeps every sound
line and says what it left out, and a writer notices when its file is no longer there.
"""

import json
import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from vit_jax.foundation import files, foreign_files
from vit_jax.foundation.errors import UserError

Line = dict[str, Any]

_LARGEST = 2**32  # bytes; a line of a run's metrics has some hundreds
_log = logging.getLogger(__name__)


def read(path: pathlib.Path, is_sound: Callable[[Line], bool]) -> list[Line]:
  """The sound lines of a file, by what such a line must have; [] where there is no file.

  A last line that a kill cut short is left out without a word. Of other damaged lines a warning is logged. OSError
  where the file cannot be read, UserError where it is no regular one.
  """
  lines, damaged = _parsed(path, is_sound)
  if damaged:
    _log.warning('%s', _sentence(path, damaged, 'left out'))
  return lines


def recover(path: pathlib.Path, is_sound: Callable[[Line], bool]) -> list[Line]:
  """As `read`, for the one process that then writes the lines anew: a damaged file is moved aside first."""
  lines, damaged = _parsed(path, is_sound)
  if damaged:
    aside = files.move_aside(path)
    _log.warning('%s', _sentence(path, damaged, f'left out; the file as it was is {aside}'))
  return lines


def text(line: Line) -> str:
  """A line of a file, with its newline. NaN and infinity, which JSON does not have, become null."""
  return json.dumps(files.as_json(line), allow_nan=False) + '\n'


class Writer:
  """Writes a file anew and appends to it; where it is gone or replaced meanwhile, all its lines are written again."""

  def __init__(self, path: pathlib.Path, lines: Sequence[Line]):
    """The file's directory exists; `lines` is what it holds at first."""
    self._path = path
    self._lines = [text(line) for line in lines]
    self._write_all()

  def append(self, line: Line) -> None:
    """Adds a line, which a reader sees at once."""
    if not self._is_there():
      if self._path.exists() and self._path.stat().st_size:
        what = f'was replaced (what was there is now {files.move_aside(self._path)})'
      else:
        what = 'was removed or emptied'
      _log.warning(
        '%s %s while the run was writing to it; all its lines are written again.', self._path, what
      )
      self._file.close()
      self._path.parent.mkdir(parents=True, exist_ok=True)
      self._write_all()
    self._lines.append(text(line))
    with files.named(self._path):
      self._file.write(self._lines[-1])
    self._size += len(self._lines[-1])

  def sync(self) -> None:
    """Returns when all lines survive a power failure."""
    with files.named(self._path):
      os.fsync(self._file.fileno())

  def close(self) -> None:
    """Ends writing."""
    with files.named(self._path):  # of a line that could not be written, once more
      self._file.close()

  def _write_all(self) -> None:
    content = ''.join(self._lines)
    files.write_text(self._path, content)
    self._file = self._path.open('a', buffering=1, encoding='utf-8')  # buffers a line
    self._size = len(content)  # bytes, as `text` is ASCII

  def _is_there(self) -> bool:
    """Whether the path still leads to the open file, and that has lost nothing."""
    try:
      found = self._path.stat()
    except FileNotFoundError:
      return False
    return os.path.samestat(found, os.fstat(self._file.fileno())) and found.st_size >= self._size


def _parsed(path: pathlib.Path, is_sound: Callable[[Line], bool]) -> tuple[list[Line], list[int]]:
  """The sound lines, and the numbers of the damaged ones; raises as `read`, also for a huge file."""
  try:
    *whole, last = foreign_files.read_bytes(path, _LARGEST).split(b'\n')
  except FileNotFoundError:
    return [], []
  except OSError as error:
    if error.errno not in foreign_files.REFUSED:
      raise
    raise UserError(f'{path} cannot be read ({error.strerror}); move it elsewhere.') from error
  parsed = [_line(content, is_sound) for content in whole]
  damaged = [number for number, line in enumerate(parsed, 1) if line is None]
  ending = _line(last, is_sound)  # sound where an editor took the last newline
  if ending is None and not (last.isascii() and last.decode().isprintable()):
    damaged.append(len(whole) + 1)  # not just cut short: a power failure may leave zeros
  return [line for line in [*parsed, ending] if line is not None], damaged


def _line(content: bytes, is_sound: Callable[[Line], bool]) -> Line | None:
  """The object of a line; None: there is no sound one."""
  try:
    line = json.loads(content)
  except (ValueError, RecursionError):
    return None
  return line if isinstance(line, dict) and is_sound(line) else None


def _sentence(path: pathlib.Path, damaged: Sequence[int], what: str) -> str:
  if len(damaged) == 1:
    return f'{path} has a damaged line (line {damaged[0]}), which is {what}.'
  return f'{path} has {len(damaged)} damaged lines (the first is line {damaged[0]}), which are {what}.'
