"""What watches a run for a step that never ends."""

import contextlib
import faulthandler
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from vit_jax.errors import end_to_restart


class Watchdog:
  """Ends this process with exit code 75 when a step takes too long, having written what each thread does.

      with Watchdog(seconds, workdir / 'report' / 'hang.txt') as watchdog:
        for step in ...:
          watchdog.begin(step)
          ...
          with watchdog.paused():
            evaluate, save

  The stacks go to stderr and into the file. It needs Python to run: code in C that hangs and keeps other
  threads from running is not noticed here, but by the other processes, for which this one is lost.
  """

  def __init__(self, limit: float, path: pathlib.Path):
    """`limit`: seconds of a step, 0 for no limit; `path`: of the stacks."""
    self._limit, self._path = limit, path
    self._step = 0
    self._since: float | None = None  # None: nothing that is watched is going on
    self._over = threading.Event()
    self._thread = threading.Thread(target=self._watch, name='watchdog', daemon=True)

  def __enter__(self) -> 'Watchdog':
    if self._limit:
      self._thread.start()
    return self

  def __exit__(self, *_) -> None:
    self._over.set()
    if self._limit:
      self._thread.join()

  def begin(self, step: int) -> None:
    """The step before has ended and this one begins."""
    self._step, self._since = step, time.monotonic()

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """What is done in here may take as long as it likes; the step's time begins anew after it."""
    self._since = None
    yield
    self._since = time.monotonic()

  def _watch(self) -> None:
    while not self._over.wait(min(self._limit / 10, 1)):
      since = self._since
      if since is not None and time.monotonic() - since > self._limit:
        self._end()

  def _end(self) -> None:
    with tempfile.TemporaryFile('w+') as file:
      faulthandler.dump_traceback(file)
      file.seek(0)
      stacks = file.read()
    print(stacks, file=sys.stderr, flush=True)
    # By a thread that may hang: a file system that does is what keeps many a step from ending.
    writer = threading.Thread(target=self._path.write_text, args=(stacks,), daemon=True)
    writer.start()
    writer.join(timeout=10)
    end_to_restart(
      f'Step {self._step} did not end within {self._limit:g} s (config.step_limit); where it hangs stands '
      f'above and in {self._path}; start the same command again to go on from the last checkpoint.'
    )
