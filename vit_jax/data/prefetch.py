"""Batches made ahead of time by threads."""

import collections
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import NamedTuple, Self, TypeVar

from vit_jax.data.on_device import Batch
from vit_jax.data.opencv import decoding_threads
from vit_jax.foundation import cpus

Item = TypeVar('Item')
Result = TypeVar('Result')

Task = Callable[[], None]
# (tasks, assemble): the tasks fill the batch's buffers, `assemble` makes the batch from them afterwards.
Work = tuple[list[Task], Callable[[], Batch]]

# Seconds after which a batch that is waited for is spoken of, and again after twice as many.
_SECONDS_OF_SILENCE = 60.0
_MOST_THREADS = 16  # where nothing is waited for: more of them would wait for Python's lock
_THREADS_OF_BUCKETS = 64
_log = logging.getLogger(__name__)


def default_threads(is_remote: bool) -> int:
  """How many threads make batches where config.data.threads does not say; `is_remote` as of `Source`."""
  return _THREADS_OF_BUCKETS if is_remote else min(cpus.usable(), _MOST_THREADS)


class _Pending(NamedTuple):
  """A batch that is being made: the tasks that fill its buffers, and the batch itself."""

  tasks: list[futures.Future[None]]
  batch: futures.Future[Batch]


class Prefetcher:
  """The batches of consecutive steps in order, a few of them made ahead.

  A context manager: its threads end when it is left, in whatever way. An error in a thread is raised,
  unchanged, when the batch that it belongs to is asked for.
  """

  def __init__(self, work: Callable[[int], Work], steps: Iterable[int], *, threads: int, prefetch: int):
    """`work` maps a step to what makes its batch; `threads` run the tasks, and `prefetch` batches are made ahead."""
    self._work, self._steps = work, iter(steps)
    self._threads, self._prefetch = threads, prefetch
    self._pending: collections.deque[_Pending] = collections.deque()

  def __enter__(self) -> Self:
    self._decoders = decoding_threads(self._threads)
    self._assembler = futures.ThreadPoolExecutor(1, 'assemble')
    for _ in range(self._prefetch):
      self._start_next()
    return self

  def __exit__(self, *unused: object) -> None:
    self._decoders.shutdown(cancel_futures=True)
    self._assembler.shutdown(cancel_futures=True)

  def __iter__(self) -> Self:
    return self

  def __next__(self) -> Batch:
    self._start_next()
    if not self._pending:
      raise StopIteration
    pending = self._pending.popleft()
    _wait_for(pending)
    return pending.batch.result()

  def _start_next(self) -> None:
    step = next(self._steps, None)
    if step is None:
      return
    tasks, assemble = self._work(step)
    running = [self._decoders.submit(task) for task in tasks]
    self._pending.append(_Pending(running, self._assembler.submit(_assemble, running, assemble)))


def map_ahead(
  function: Callable[[Item], Result], groups: Iterable[Sequence[Item]], threads: int
) -> Iterator[list[Result]]:
  """The results of each group, in order; threads compute those of the next one while the caller has these."""
  with futures.ThreadPoolExecutor(threads) as pool:
    ahead: list[futures.Future[Result]] | None = None
    for group in [*groups, ()]:  # nothing is computed while the caller has the last results
      current, ahead = ahead, [pool.submit(function, item) for item in group]
      if current is not None:
        yield [future.result() for future in current]


def _wait_for(pending: _Pending) -> None:
  """Waits until a batch is made, or failed; says so if that takes long."""
  seconds = wait = _SECONDS_OF_SILENCE
  while not futures.wait([pending.batch], timeout=wait).done:
    done = sum(task.done() for task in pending.tasks)
    _log.warning(
      'The next batch of images is not ready after %.0f s; %d of its %d parts are. Their storage is slow, or '
      'there are many of them, or they are enlarged a lot (batch_size, image_size and resize).',
      seconds,
      done,
      len(pending.tasks),
    )
    seconds, wait = 2 * seconds, seconds


def _assemble(running: list[futures.Future[None]], assemble: Callable[[], Batch]) -> Batch:
  for task in running:
    task.result()
  return assemble()
