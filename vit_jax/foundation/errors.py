"""The errors that a person can cause, each one sentence, and the exit codes they end in."""

import os
import sys
from typing import ClassVar, NoReturn

EXIT_USER_ERROR = 2  # a wrong config or input: starting again without a change cannot help
# Stopped, after a save where it could (preemption): the same command goes on (sysexits' EX_TEMPFAIL).
EXIT_RESTART = 75


class UserError(Exception):
  """A wrong config or input. Its text is one sentence: what is wrong, where, and what to do."""

  exit_code: ClassVar[int] = EXIT_USER_ERROR

  def _render_traceback_(self) -> list[str]:
    """What IPython, and so a notebook, shows in the place of a traceback."""
    return [str(self)]


class BadImage(UserError):
  """An image whose content cannot be decoded, now or ever: `name` is what errors call it."""

  def __init__(self, name: str, text: str):
    super().__init__(text)
    self.name = name


class NotFinite(UserError):
  """The loss or the gradient of a run is not finite, at one step or at most of them."""


class OutOfReach(UserError):
  """What the network did not give for long. Starting the same command again may help."""

  exit_code = EXIT_RESTART


class Preempted(Exception):
  """The run was asked to stop, and saved. Starting the same command again continues it."""


def first_line(error: BaseException) -> str:
  """The first line of an error's text, without its full stop; the name of its type if it has no text."""
  return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip('.')


def end_to_restart(sentence: str) -> NoReturn:
  """Ends the process, from any thread, with exit code 75; other threads that hang do not matter."""
  print(f'\n{sentence}', file=sys.stderr, flush=True)
  os._exit(EXIT_RESTART)
