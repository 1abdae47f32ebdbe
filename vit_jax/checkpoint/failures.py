"""Tells failures to save or restore apart: damage, what a person can put right, and our own bugs."""

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

from vit_jax.foundation import error_sentences
from vit_jax.foundation.errors import UserError, first_line
from vit_jax.foundation.files import UNWRITABLE

# How TensorStore and Orbax say, in errors without a number, that a file they wrote is no longer there.
_NOT_FOUND = ('NOT_FOUND', 'does not exist', 'No ArrayMetadata found')

_log = logging.getLogger(__name__)


class Damaged(Exception):
  """A checkpoint cannot be read, or is not what was saved."""


@contextlib.contextmanager
def explained(directory: Any) -> Iterator[None]:
  """Turns a full disk, a directory that cannot be written or one that was removed into a UserError."""
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    failed = error_sentences.number_among(error, error_sentences.FAILURES)
    if failed:
      raise UserError(error_sentences.failure(failed, str(directory))) from error
    if error_sentences.number_among(error, UNWRITABLE):
      raise UserError(
        f'Checkpoints cannot be written to {directory} ({first_line(error)}); choose a directory that you '
        f'may write to.'
      ) from error
    if is_removal(error):
      raise UserError(
        f'A checkpoint was removed from {directory} while it was being written; start again to go on from '
        f'the newest checkpoint that is left.'
      ) from error
    raise


def is_removal(error: BaseException) -> bool:
  """Whether a save failed because someone removed its files."""
  if error_sentences.number_among(error, {errno.ENOENT}):
    return True
  return any(text in str(link) for link in error_sentences.chain(error) for text in _NOT_FOUND)


def read(function: Callable[[], Any]) -> Any:
  """`function()`, which reads from a checkpoint; Damaged for every error that a sound one cannot cause.

  Raises UserError where reading is not permitted.
  """
  try:
    return function()
  except (Damaged, MemoryError):
    raise
  except PermissionError as error:
    raise UserError(f'A checkpoint cannot be read ({first_line(error)}); allow reading it.') from error
  except Exception as error:
    if 'RESOURCE_EXHAUSTED' in str(error):
      raise
    _log.debug('A checkpoint is damaged:', exc_info=True)
    first = error
    while first.__cause__ is not None:  # Orbax's own text is a page of settings
      first = first.__cause__
    reason = f'{type(first).__name__}: {first_line(first)[:200]}'
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
    worst = int(np.max(np.asarray(multihost_utils.process_allgather(np.int32(mine)))))
    if worst > mine:
      failure = RuntimeError('another process failed')
      if worst == 1:
        failure = Damaged('another process found it so')
  if failure is not None:
    raise failure


def silence_libraries() -> None:
  """Silences the pages that Orbax, asyncio and TensorStore print of an error that they also raise.

  When one write or read fails, Orbax abandons the others, and each of these complains later, at any time. Our
  error is one sentence. At log level DEBUG nothing is hidden.
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
  """TensorStore's threads print through this hook when the event loop that they report to is gone."""

  def __init__(self, otherwise: Callable[[Any], None]):
    self._otherwise = otherwise

  def __call__(self, unraisable: Any) -> None:
    if 'Event loop is closed' not in str(unraisable.exc_value) or _log.isEnabledFor(logging.DEBUG):
      self._otherwise(unraisable)
