"""The commit of a step: in which order its files, its name and the removal of older steps reach the disk.

docs/architecture.md, "What survives a power loss", explains the order.
"""

import asyncio
import errno
import os
import pathlib
from collections.abc import Callable

import orbax.checkpoint as ocp

from vit_jax.foundation.files import fsync_directory, fsync_file


class DurableStep(ocp.path.atomicity.AtomicRenameTemporaryPath):
  """A directory that Orbax fills under a temporary name; `finalize` gives it its final name, durably.

  Orbax makes one for each step and one for each item in it. It calls `finalize` on process 0 alone, in its
  background thread, when all processes have written their files. The save counts as finished, and older steps
  are removed, only when the step's `finalize` has returned.
  """

  # Called before the step gets its name; its error ends the save. `before` makes a class with one.
  before_commit: Callable[[], None] = staticmethod(lambda: None)

  @classmethod
  def before(cls, commit: Callable[[], None]) -> type['DurableStep']:
    """The class whose `before_commit` is this function; Orbax takes a class."""
    return type(cls.__name__, (cls,), {'before_commit': staticmethod(commit)})

  async def finalize(self) -> None:
    """Syncs and renames the directory; an OSError, or a step that is not listed then, leaves the older steps."""
    temporary, final = pathlib.Path(self.get()), pathlib.Path(self.get_final())
    if ocp.path.atomicity_types.TMP_DIR_SUFFIX in final.parent.name:  # an item: synced with its step
      await super().finalize()
      return
    await asyncio.to_thread(_sync_tree, temporary)
    self.before_commit()
    await super().finalize()  # writes two small files into the directory, and renames it
    await asyncio.to_thread(_sync_renamed, final)


def _sync_tree(directory: pathlib.Path) -> None:
  """Syncs all files and directories below and including `directory`, names after contents."""
  for parent, _, names in os.walk(directory, topdown=False, onerror=_raise):
    for name in names:
      fsync_file(pathlib.Path(parent, name))
    fsync_directory(parent)


def _sync_renamed(step: pathlib.Path) -> None:
  """Syncs a step's last files and its new name, and checks that it is listed."""
  for path in step.iterdir():
    if path.is_file():
      fsync_file(path)
  fsync_directory(step)
  fsync_directory(step.parent)
  if step.name not in os.listdir(step.parent):
    raise FileNotFoundError(errno.ENOENT, 'saved, but not listed', str(step))


def _raise(error: OSError) -> None:
  raise error
