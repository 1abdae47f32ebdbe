"""What processes that read hostile files share: little memory, little time, and an outcome a case."""

import pathlib
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

from vit_jax.foundation.errors import UserError

SECONDS = 60  # on the clock, after which a case is stopped; a busy machine makes all of them slow


def restrict_memory(more: int) -> None:
  """Allows this process so many bytes of address space beyond what it has."""
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
  limit = pages * resource.getpagesize() + more
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def outcome(read: Callable[[], Any]) -> tuple[str, str, float]:
  """('read' or the type of the error, its text, seconds of computing)."""
  signal.signal(signal.SIGALRM, _too_long)
  signal.alarm(SECONDS)
  began = time.process_time()
  try:
    read()
    kind, text = 'read', ''
  except UserError as error:
    kind, text = 'UserError', str(error)
  except BaseException as error:
    kind, text = type(error).__name__, str(error)[:500]
  signal.alarm(0)
  return kind, text, time.process_time() - began


class TooLong(BaseException):
  """A case took too long; no reader catches it."""


def _too_long(*_: object) -> None:
  raise TooLong
