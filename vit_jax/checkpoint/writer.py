"""Saving the steps of a run in the background, by Orbax, and removing those that need not be kept."""

import contextlib
import errno
import logging
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from vit_jax.checkpoint import failures, step_meta
from vit_jax.checkpoint.durable import DurableStep
from vit_jax.checkpoint.failures import Damaged
from vit_jax.checkpoint.items import item_handler
from vit_jax.checkpoint.retention import Retention
from vit_jax.foundation import files
from vit_jax.foundation.pytrees import unflatten

_log = logging.getLogger(__name__)


def committed_steps(directory: epath.Path) -> list[int]:
  """The committed steps of a directory, sound or not, in ascending order."""
  if not directory.exists():
    return []
  return sorted(ocp.utils.checkpoint_steps(directory))


class Writer:
  """Saves steps to a directory. In a run of several processes all of them must make the same calls.

  If somebody removes the directory or a step while a run saves, the run goes on with a warning, and the next
  save makes the directory again. Every method raises UserError where the disk is full or the directory cannot
  be written.
  """

  def __init__(
    self, directory: epath.Path, retention: Retention, before_commit: Callable[[], None] = lambda: None
  ):
    """Makes the directory, which is absolute, and removes what a killed process left half saved.

    `before_commit` is called before a step is begun, before it counts, and before the directory is made again.
    """
    self._directory, self._retention, self._before_commit = directory, retention, before_commit
    self._gone: set[int] = set()  # steps that somebody removed, and of which we warned
    with failures.explained(directory):
      self._orbax = self._opened()

  def save(
    self, step: int, items: dict[str, Any], meta: dict[str, Any], metrics: dict[str, float] | None
  ) -> bool:
    """Waits for the save before it and starts this one; see `Manager.save`."""
    with failures.explained(self._directory):
      try:
        self._orbax.wait_until_finished()
      except Exception as error:
        self._go_on_after_removal(error)
      self._before_commit()
      if step in self._orbax.all_steps():
        return False
      self._notice_removed_steps()
      self._retention.best.remember(step, metrics)
      arguments = _arguments(items, meta, metrics)
      try:
        return self._orbax.save(step, args=arguments, force=True)
      except Exception as error:
        self._go_on_after_removal(error)
      return self._orbax.save(step, args=arguments, force=True)

  def wait(self) -> None:
    """Returns when all saves survive a power loss; UserError where the files of the last one were removed."""
    with failures.explained(self._directory):
      self._orbax.wait_until_finished()

  def close(self) -> None:
    """Waits, and ends the threads."""
    with failures.explained(self._directory):
      self._orbax.close()

  def reopen(self) -> None:
    """Finds the steps that are there now, after `close`."""
    with failures.explained(self._directory):
      self._orbax = self._opened()

  def _opened(self) -> '_Orbax':
    """Makes the directory, sees that it can be written, removes partial saves, and starts Orbax."""
    files.make_directories(self._directory)
    with tempfile.TemporaryFile(dir=self._directory):
      pass
    if jax.process_index() == 0:
      for path in self._directory.iterdir():
        if ocp.path.atomicity_types.TMP_DIR_SUFFIX in path.name:
          _remove_partial_save(path)
    barrier('vit_jax checkpoints cleaned')
    options = ocp.CheckpointManagerOptions(
      create=False,
      cleanup_tmp_directories=True,
      temporary_path_class=DurableStep.before(self._before_commit),
      # Do not read the steps' own files now: a damaged one would raise.
      lightweight_initialize=True,
      preservation_policy=self._retention.policy,
    )
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    handlers.add(None, ocp.args.PyTreeSave, item_handler())
    orbax = _Orbax(self._directory, options=options, handler_registry=handlers)
    for step in orbax.all_steps():
      with contextlib.suppress(Damaged, OSError):
        self._retention.best.remember(step, step_meta.read(self._directory / str(step))['metrics'])
    return orbax

  def _go_on_after_removal(self, error: Exception) -> None:
    """Warns and starts Orbax anew where a save failed because its files were removed; else raises `error`."""
    # Where there are several processes, others may still wait for those files.
    if jax.process_count() > 1 or not failures.is_removal(error):
      raise error
    self._before_commit()
    _log.warning(
      'A checkpoint was removed from %s while it was being written; going on without it.', self._directory
    )
    with contextlib.suppress(Exception):  # it failed already
      self._orbax.close()
    time.sleep(1)  # whoever removes the files may not have done yet
    self._orbax = self._opened()

  def _notice_removed_steps(self) -> None:
    """Warns of steps that somebody removed; the best of them no longer counts as the best."""
    if jax.process_index() != 0:  # such a process removes no old steps, and may not see the newest one yet
      return
    files.make_directories(self._directory)
    gone = set(self._orbax.all_steps()) - set(committed_steps(self._directory)) - self._gone
    if gone:
      steps = ', '.join(map(str, sorted(gone)))
      _log.warning('Checkpoints were removed from %s (steps %s); going on.', self._directory, steps)
      self._gone |= gone
      self._retention.best.forget(gone)


class _Orbax(ocp.CheckpointManager):
  def reached_preemption(self, step: int) -> bool:
    """False: `StopSignal` asks JAX for the sync point.

    Orbax would ask too, in its threads and with the step that is being saved: to JAX that looks as if
    this process had gone back, and it could set the sync point to a step that is over.
    """
    return False


def _arguments(
  items: dict[str, Any], meta: dict[str, Any], metrics: dict[str, float] | None
) -> ocp.args.Composite:
  """What Orbax is to save."""
  arrays, contents = step_meta.sealed(items, meta, metrics)
  # Nested dicts: what is stored is free of the classes of optimizer states. An item without arrays (the state
  # of an optimizer that has none) lies in `meta` alone.
  trees = {name: ocp.args.PyTreeSave(unflatten(leaves)) for name, leaves in arrays.items() if leaves}
  return ocp.args.Composite(**trees, meta=ocp.args.JsonSave(contents))


def _remove_partial_save(directory: epath.Path) -> None:
  """Removes a directory to which a failed save of this process may still be adding files."""
  for _ in range(20):
    try:
      directory.rmtree()
    except FileNotFoundError:
      return
    except OSError as error:
      if error.errno != errno.ENOTEMPTY:
        raise
      time.sleep(0.1)


def barrier(name: str) -> None:
  """Returns when all processes have called it."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
