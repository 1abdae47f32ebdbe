"""Ends a run whose step, or evaluation's data, never comes."""

import contextlib
import faulthandler
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from vit_jax.foundation.errors import end_to_restart
from vit_jax.training.workdir import Workdir

_Item = TypeVar('_Item')


class Watchdog:
  """Ends this process with exit code 75 when a step takes too long, after writing the stacks of all threads.

      with Watchdog(seconds, folder / 'report' / 'hang.txt', workdir) as watchdog:
        for step in ...:
          watchdog.begin(step)
          ...
          with watchdog.paused():
            for batch in watchdog.limited(batches):
              evaluate
            save

  The stacks go to stderr and into the file. The watchdog is a Python thread: if C code hangs and holds Python's lock,
  it cannot run. Then the other processes of the run notice that this one has fallen silent.
  """

  def __init__(self, limit: float, path: pathlib.Path, workdir: Workdir):
    """A step, or the next batch of an evaluation, may take `limit` seconds, or any time if that is 0."""
    self._limit, self._path, self._workdir = limit, path, workdir
    self._what = ''  # is being watched
    self._since: float | None = None  # when that began; None if nothing is being watched
    self._over = threading.Event()
    self._thread = threading.Thread(target=self._watch, name='watchdog', daemon=True)

  def __enter__(self) -> 'Watchdog':
    if self._limit:
      self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._over.set()
    if self._limit:
      self._thread.join()

  def begin(self, step: int) -> None:
    """Tells that `step` begins now, and that the one before it has ended."""
    self._what, self._since = f'Step {step}', time.monotonic()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Inside, the step's time is not limited; after it, the time starts again from zero."""
    what, self._since = self._what, None
    yield
    self._what, self._since = what, time.monotonic()

  def limited(self, batches: Iterable[_Item]) -> Iterator[_Item]:
    """The batches of an evaluation, inside `paused`: the time until each is ready is limited, not its use."""
    iterator = iter(batches)
    self._what = 'Reading a batch of an evaluation'
    while True:
      self._since = time.monotonic()
      try:
        batch = next(iterator)
      except StopIteration:
        return
      finally:
        self._since = None
      yield batch

  def _watch(self) -> None:
    while not self._over.wait(min(self._limit / 10, 1)):
      since = self._since
      if since is not None and time.monotonic() - since > self._limit:
        self._end()

  def _end(self) -> None:
    with tempfile.TemporaryFile('w+', encoding='utf-8') as file:
      faulthandler.dump_traceback(file)
      file.seek(0)
      stacks = file.read()
    print(stacks, file=sys.stderr, flush=True)
    # In a thread of its own, because this may hang too: a stalled file system is a common cause.
    writer = threading.Thread(target=self._write, args=(stacks,), daemon=True)
    writer.start()
    writer.join(timeout=10)
    end_to_restart(
      f'{self._what} did not end within {self._limit:g} s (config.step_limit); the stacks above, which '
      f'are also in {self._workdir.named(str(self._path))}, show where it hangs; start the same command again '
      f'to go on from the last checkpoint.'
    )

  def _write(self, stacks: str) -> None:
    self._path.write_text(stacks, encoding='utf-8')
    self._workdir.upload()
