"""The checkpoints of a run: Orbax, with a checksum for every array and a way back from damage.

A step lies in `<directory>/<step>/`: an Orbax item for each tree of arrays (items.py) and a sealed JSON
(step_meta.py). Orbax alone restores flipped bits and other dtypes without a word, so nothing leaves this
module unverified. A step that was saved (writer.py) survives a power loss (durable.py). Whether steps lie in a folder
or in a bucket is the matter of store.py alone.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.checkpoint import failures, step_meta
from vit_jax.checkpoint.bucket_writer import BucketWriter
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.failures import Damaged
from vit_jax.checkpoint.items import StoredItem
from vit_jax.checkpoint.retention import Retention
from vit_jax.checkpoint.store import open_store
from vit_jax.checkpoint.writer import Writer, barrier
from vit_jax.foundation.errors import UserError

# What to restore: trees of ShapeDtypeStructs by the names of the items, or a function that makes them of the
# caller's meta.
AbstractItems = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]

_log = logging.getLogger(__name__)


class Manager:
  """The checkpoints of one run. In a run of several processes all of them must make the same calls."""

  def __init__(
    self,
    directory: str | os.PathLike[str],
    checkpoint: CheckpointConfig,
    *,
    keep_every_steps: Fraction | int | None = None,
    lower_is_better: bool = False,
    read_only: bool = False,
    before_commit: Callable[[], None] = lambda: None,
  ):
    """Makes the directory and removes what a killed process left half saved; UserError where it cannot be written.

    Args:
      directory: where the steps lie, or an address in a bucket; `read_only`: nothing in it is changed.
      checkpoint, keep_every_steps, lower_is_better: see `Retention`.
      before_commit: called before a step counts, in the background, and in a folder also before it is begun; its
        error ends the save.
    """
    failures.silence_libraries()
    self._store = open_store(directory)
    retention = Retention(checkpoint, keep_every_steps=keep_every_steps, lower_is_better=lower_is_better)
    self._writer = None if read_only else self._store.writer(retention, before_commit)

  def path(self, step: int) -> str:
    """The directory or address of a step, for messages."""
    return self._store.path(step)

  def all_steps(self) -> list[int]:
    """The committed steps, sound or not, in ascending order."""
    return self._store.committed()

  def latest_step(self) -> int | None:
    """The newest committed step; a save that is still being written does not count."""
    return max(self.all_steps(), default=None)

  def save(
    self, step: int, items: dict[str, Any], meta: dict[str, Any], metrics: dict[str, float] | None = None
  ) -> bool:
    """Waits for the save before it and starts this one; False where that step is there already.

    When it returns, the arrays may be donated or changed, while files are still being written. The step
    survives a power loss when `wait` or the next `save` has returned.

    Args:
      step: of training.
      items: maps names to trees of arrays; each can be restored without the others. Random keys are not stored.
      meta: what JSON can hold.
      metrics: values of the evaluations at this step by name; a step without `checkpoint.best` is never the best.

    Raises:
      UserError: no space or no permission; also where that befell the save before this one.
    """
    if self._writer is None:
      raise ValueError(f'{self._store.place} was opened to be read only')
    return self._writer.save(step, items, meta, metrics)

  def restore_newest(
    self, abstract_items: AbstractItems
  ) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
    """Restores the newest sound step.

    A damaged step is warned of, and moved to `damaged/` beside the directory once an older sound one is
    found; all processes fall back where one of them has to.

    Args:
      abstract_items: maps the names of the items to restore to trees of ShapeDtypeStructs with the shardings
        wanted, on any mesh; without a sharding, this process's first device. Any subset of the items saved,
        even none. Or a function that makes them of the caller's meta; it is called for each step under trial.

    Returns:
      (step, items by name, the caller's meta), all of the same step, or None where nothing was ever saved.

    Raises:
      UserError: there are steps but none is sound, or a sound one does not hold what is asked for.
    """
    self.wait()
    damaged = []
    for step in reversed(self._agreed_steps()):
      try:
        items, meta = self._verified(step, abstract_items)
      except Damaged as error:
        _log.warning('Checkpoint %s is damaged (%s); trying the one before it.', self.path(step), error)
        damaged.append(step)
      else:
        if damaged and self._writer is not None:
          self._move_aside(self._writer, damaged)
        return step, items, meta
    if damaged:
      raise UserError(
        f'None of the {len(damaged)} checkpoints in {self._store.place} is sound; restore the directory from '
        f'a copy, or remove it to train from the start.'
      )
    return None

  def restore(self, step: int, abstract_items: AbstractItems) -> tuple[dict[str, Any], dict[str, Any]]:
    """Restores one step: (items by name, the caller's meta); see `restore_newest`.

    Raises UserError for a step that is not there, is damaged, or does not hold what is asked for.
    """
    self.wait()
    steps = self._agreed_steps()
    if step not in steps:
      there = f'the steps {", ".join(map(str, steps))}' if steps else 'none'
      raise UserError(f'There is no checkpoint of step {step} in {self._store.place}; there are {there}.')
    try:
      return self._verified(step, abstract_items)
    except Damaged as error:
      raise UserError(f'Checkpoint {self.path(step)} is damaged ({error}); choose another step.') from error

  def newest_meta(self) -> dict[str, Any] | None:
    """The caller's meta of the newest step that has it sound, or None; other processes need not call it."""
    for step in reversed(self.all_steps()):
      with contextlib.suppress(Damaged), self._store.fetched(step, 'meta') as folder:
        return step_meta.read(folder)['meta']
    return None

  def wait(self) -> None:
    """Returns when all saves survive a power loss; raises UserError as `save` does."""
    if self._writer is not None:
      self._writer.wait()

  def close(self) -> None:
    """Waits, and ends the threads; raises UserError as `save` does."""
    if self._writer is not None:
      self._writer.close()

  def __enter__(self) -> 'Manager':
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    try:
      self.close()
    except UserError:
      if kind is None:
        raise  # otherwise the error that is on its way already matters more

  def _move_aside(self, writer: Writer | BucketWriter, steps: list[int]) -> None:
    writer.close()
    with failures.explained(self._store.place):
      if jax.process_index() == 0:
        for step in steps:
          self._store.set_aside(step)
      barrier('vit_jax damaged checkpoints moved')
    writer.reopen()

  def _agreed_steps(self) -> list[int]:
    """The committed steps; UserError where the processes do not see the same."""
    steps = self.all_steps()
    if jax.process_count() > 1:
      digest = int(hashlib.sha256(str(steps).encode()).hexdigest()[:7], 16)
      digests = np.asarray(multihost_utils.process_allgather(np.int32(digest)))
      if len(np.unique(digests)) > 1:
        raise UserError(
          f'The processes see different checkpoints in {self._store.place}; put it on a file system that all '
          f'of them share.'
        )
    return steps

  def _verified(self, step: int, abstract_items: AbstractItems) -> tuple[dict[str, Any], dict[str, Any]]:
    """The items and the caller's meta of a step, or Damaged, or UserError; the same in all processes."""
    with contextlib.ExitStack() as stack:
      with failures.agreed():
        directory = stack.enter_context(self._store.fetched(step))
        contents = step_meta.read(directory)
      asked = abstract_items(contents['meta']) if callable(abstract_items) else abstract_items
      with failures.agreed():
        stored = {name: StoredItem(directory, name, tree, contents['items']) for name, tree in asked.items()}
        arrays = {name: item.read() for name, item in stored.items()}
      with failures.agreed():  # now that all processes have their arrays: the checksums need all of them
        items = {name: item.verified(arrays[name]) for name, item in stored.items()}
    return items, contents['meta']
