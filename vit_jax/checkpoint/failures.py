"""What a failure to save or restore is: damage, something a person can put right, or a bug of ours."""

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.errors import UserError

_log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


class Damaged(Exception):
  """A checkpoint cannot be read, or is not what was saved."""


@contextlib.contextmanager
def explained(directory: Any) -> Iterator[None]:
  """Turns a full disk or a directory that cannot be written into a UserError."""
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    chain = list(_chain(error))
    if any(_is(link, _FULL) for link in chain):
      raise UserError(
        f'The disk is full: the checkpoint could not be written to {directory}; free some space and start '
        f'again, the newest checkpoint that was complete is still there.'
      ) from error
    if any(_is(link, _UNWRITABLE) for link in chain):
      raise UserError(
        f'Checkpoints cannot be written to {directory} ({_first_line(chain[0])}); choose a directory that '
        f'you may write.'
      ) from error
    raise


def read(function: Callable[[], Any]) -> Any:
  """What `function` returns; whatever it raises is Damaged, but for what a sound checkpoint can raise too."""
  try:
    return function()
  except (Damaged, MemoryError):
    raise
  except PermissionError as error:
    raise UserError(f'A checkpoint cannot be read ({_first_line(error)}); allow reading it.') from error
  except Exception as error:
    if 'RESOURCE_EXHAUSTED' in str(error):
      raise
    _log.debug('A checkpoint is damaged:', exc_info=True)
    first = error
    while first.__cause__ is not None:  # Orbax's own text is a page of settings
      first = first.__cause__
    reason = f'{type(first).__name__}: {_first_line(first)}'
  raise Damaged(reason)


@contextlib.contextmanager
def agreed() -> Iterator[None]:
  """Makes all processes leave this block in the same way: done, Damaged, or another error.

  The block itself must not wait for the other processes where only some of them may fail.
  """
  failure = None
  try:
    yield
  except Exception as error:
    failure = error
  if jax.process_count() > 1:
    mine = 0 if failure is None else 1 if isinstance(failure, Damaged) else 2
    worst = int(np.max(multihost_utils.process_allgather(np.int32(mine))))
    if worst > mine:
      failure = (
        Damaged('another process found it so') if worst == 1 else RuntimeError('another process failed')
      )
  if failure is not None:
    raise failure


def hush() -> None:
  """Silences what Orbax, asyncio and TensorStore print, over pages, of an error that they also raise.

  When one write or read fails, Orbax abandons the others; each of these complains later, at any time. We
  say it in a sentence; at log level DEBUG nothing is hidden.
  """
  logging.getLogger('absl').addFilter(_orbax_record_wanted)
  logging.getLogger('asyncio').addFilter(_asyncio_record_wanted)
  if not isinstance(sys.unraisablehook, _UnraisableHook):
    sys.unraisablehook = _UnraisableHook(sys.unraisablehook)


def _orbax_record_wanted(record: logging.LogRecord) -> bool:
  return f'{os.sep}orbax{os.sep}' not in record.pathname or _log.isEnabledFor(logging.DEBUG)


def _asyncio_record_wanted(record: logging.LogRecord) -> bool:
  return 'never retrieved' not in record.getMessage() or _log.isEnabledFor(logging.DEBUG)


class _UnraisableHook:
  """TensorStore's threads print through this hook where the event loop they report to is gone."""

  def __init__(self, otherwise: Callable[[Any], None]):
    self._otherwise = otherwise

  def __call__(self, unraisable: Any) -> None:
    if 'Event loop is closed' not in str(unraisable.exc_value) or _log.isEnabledFor(logging.DEBUG):
      self._otherwise(unraisable)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
  """The error and all that led to it."""
  while error is not None:
    yield error
    yield from getattr(error, 'exceptions', ())
    error = error.__cause__ or error.__context__


def _is(error: BaseException, numbers: tuple[int, ...]) -> bool:
  """TensorStore has the system's error in its text alone."""
  if isinstance(error, OSError) and error.errno is not None:
    return error.errno in numbers
  return any(os.strerror(number) in str(error) for number in numbers)


def _first_line(error: BaseException) -> str:
  return (str(error).strip().splitlines() or [''])[0][:200]
