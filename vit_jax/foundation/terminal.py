"""What a command writes to its terminal: text of any characters, and warnings."""

import io
import logging
import re
import sys
import threading
from collections.abc import Iterable
from typing import Any

from absl import logging as absl_logging

from vit_jax.foundation import error_sentences


def prepare() -> None:
  """Has stdout and stderr write every name, and show rather than obey its control characters on a terminal."""
  if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ('strict', 'surrogateescape'):
    # Names of files may be of any bytes, and the locale may have no '×'; a user's own choice stays.
    sys.stdout.reconfigure(errors='backslashreplace')
  for name in ('stdout', 'stderr'):
    stream = getattr(sys, name)
    if stream.isatty():
      setattr(sys, name, _Terminal(stream))


class _Terminal:
  """A terminal's stream that shows control characters in names of files and classes in place of obeying them.

  How a progress bar moves stays: tqdm writes a return in front of a text, and steps up and down by themselves.
  """

  _MOVES = re.compile(r'(\r *)+|(\n|\x1b\[A)*\Z|')
  # The C0 and C1 codes but tab and newline, and those that turn the direction of writing.
  _CONTROLS = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]')

  def __init__(self, stream: Any):
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes a text; the number of its characters."""
    moves = self._MOVES.match(text)
    assert moves
    shown = self._CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text[moves.end() :])
    self._stream.write(moves[0] + shown)
    return len(text)

  def writelines(self, lines: Iterable[str]) -> None:
    """Writes texts."""
    for line in lines:
      self.write(line)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


class _WarningLines(logging.Handler):
  """Writes a warning to stderr as a line of its own, above the progress bar if there is one."""

  def emit(self, record: logging.LogRecord) -> None:
    from tqdm import tqdm

    tqdm.write(f'{record.levelname.capitalize()}: {record.getMessage()}', file=sys.stderr)


def show_warnings() -> None:
  """Shows warnings of this package and of the libraries once each, without the names of their loggers."""
  absl_logging.set_verbosity(absl_logging.WARNING)
  logging.basicConfig(handlers=[_WarningLines()], force=True)
  threading.excepthook = _thread_failed


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
  """Says in one sentence that a library's thread, such as TensorBoard's, could not write; otherwise as ever."""
  error = failed.exc_value
  if isinstance(error, OSError):
    error.filename = error.filename or "A library's file"
  text = error_sentences.of(error) if isinstance(error, Exception) else None
  if text:
    logging.getLogger(__name__).warning(text)
  else:
    threading.__excepthook__(failed)
