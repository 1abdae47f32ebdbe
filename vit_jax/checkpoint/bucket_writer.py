"""Saving steps to a bucket in the background.

Each process writes its own shards to its own disk, with Orbax, and uploads them; nothing is shared but the bucket.
When all have done so, process 0 commits the step, and only then removes older ones.
"""

import asyncio
import contextlib
import pathlib
import shutil
from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint import failures, step_meta
from vit_jax.checkpoint.bucket_steps import BucketSteps
from vit_jax.checkpoint.failures import Damaged
from vit_jax.checkpoint.items import item_handler
from vit_jax.checkpoint.retention import Retention
from vit_jax.foundation import cache
from vit_jax.foundation.pytrees import unflatten

# Seconds that processes wait for each other; one that is lost is noticed elsewhere.
_LONGEST_UPLOAD = 6 * 3600


class BucketWriter:
  """Saves steps; the same methods as `writer.Writer`, and UserError as `Bucket` raises it."""

  def __init__(
    self, steps: BucketSteps, retention: Retention, before_commit: Callable[[], None] = lambda: None
  ):
    """Removes what a killed process left half saved; `before_commit` is called on each process, in the background."""
    self._steps, self._retention, self._before_commit = steps, retention, before_commit
    self._folder = cache.folder_of('saving', steps.path(0)) / str(jax.process_index())
    self._barriers = 0
    self.reopen()

  def save(
    self, step: int, items: dict[str, Any], meta: dict[str, Any], metrics: dict[str, float] | None
  ) -> bool:
    """Waits for the save before it and starts this one; see `Manager.save`."""
    self.wait()
    if self._steps.is_committed(step):
      return False
    self._retention.best.remember(step, metrics)
    arrays, contents = step_meta.sealed(items, meta, metrics)
    folder = self._folder / str(step)
    if jax.process_index() == 0:
      ocp.JsonCheckpointHandler().save(_made(folder / 'meta'), args=ocp.args.JsonSave(contents))
    writing = [_Item(folder / name, leaves) for name, leaves in arrays.items() if leaves]
    self._saving = self._thread.submit(self._finish, step, folder, writing)
    return True

  def wait(self) -> None:
    """Returns when the last save is committed in the bucket."""
    if self._saving is not None:
      saving, self._saving = self._saving, None
      with failures.explained(self._folder):
        saving.result()

  def close(self) -> None:
    """Waits, and ends the thread."""
    try:
      self.wait()
    finally:
      self._thread.shutdown()

  def reopen(self) -> None:
    """Finds the steps that are there now, after `close`."""
    self._saving: futures.Future[None] | None = None
    self._thread = futures.ThreadPoolExecutor(1, 'checkpoint')
    shutil.rmtree(self._folder, ignore_errors=True)
    if jax.process_index() == 0:
      self._steps.remove_partial()
      for step in self._steps.committed():
        with contextlib.suppress(Damaged), self._steps.fetched(step, 'meta') as folder:
          self._retention.best.remember(step, step_meta.read(folder)['metrics'])
    self._barrier('opened')

  def _finish(self, step: int, folder: pathlib.Path, writing: list['_Item']) -> None:
    """Uploads what this process writes, and commits the step when all processes have."""
    for item in writing:
      item.finish()
    self._steps.push(folder, step)
    self._before_commit()
    self._barrier('uploaded')
    if jax.process_index() == 0:
      self._steps.commit(step)
      for old in self._retention.superfluous(self._steps.committed()):
        self._steps.remove(old)
    self._barrier('committed')
    shutil.rmtree(folder)

  def _barrier(self, name: str) -> None:
    """Returns when all processes have called it. Not on the devices, which are training meanwhile."""
    self._barriers += 1
    if jax.process_count() > 1:
      client = ocp.multihost.get_jax_distributed_client()
      client.wait_at_barrier(f'vit_jax/bucket/{name}/{self._barriers}', _LONGEST_UPLOAD * 1000)


class _Item:
  """A tree of arrays that is being written to a folder: this process's shards, whatever others do."""

  def __init__(self, folder: pathlib.Path, leaves: dict[str, jax.Array]):
    """Returns when the arrays may be donated or changed."""
    alone = ocp.options.MultiprocessingOptions(
      primary_host=None,
      active_processes={jax.process_index()},
      barrier_sync_key_prefix=str(jax.process_index()),
    )
    self._folder = _made(folder)
    # A file for each shard: with OCDBT, one process would merge what all have written to a shared disk.
    self._handler = item_handler(use_ocdbt=False, multiprocessing_options=alone)
    save = self._handler.async_save(self._folder, args=ocp.args.PyTreeSave(unflatten(leaves)))
    self._writes = asyncio.run(save) or []

  def finish(self) -> None:
    """Returns when the files are written."""
    for write in self._writes:
      write.result()
    self._handler.finalize(self._folder)
    self._handler.close()


def _made(folder: pathlib.Path) -> epath.Path:
  folder.mkdir(parents=True)
  return epath.Path(folder)
