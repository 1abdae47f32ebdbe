"""Batches made ahead by threads."""

import collections
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Self

import cv2
import jax

Batch = dict[str, jax.Array]
# The parts of a batch, to be run by several threads in any order, and what makes the batch of them then.
Work = tuple[list[Callable[[], None]], Callable[[], Batch]]


class Stream:
  """The batches of consecutive steps, in order, some of them made ahead.

  A context manager: leaving it, by whatever way, ends its threads. An error in a thread is raised, as it
  is, at the batch it belongs to.
  """

  def __init__(self, work: Callable[[int], Work], steps: Iterable[int], *, threads: int, prefetch: int):
    """
    Args:
      work: step -> the parts of its batch and what makes the batch of them.
      steps: the steps wanted.
      threads: that run the parts.
      prefetch: batches made ahead.
    """
    self._work, self._steps = work, iter(steps)
    self._threads, self._prefetch = threads, prefetch
    self._pending: collections.deque[futures.Future[Batch]] = collections.deque()

  def __enter__(self) -> Self:
    # OpenCV's own threads would compete with these; its setting is one for the process.
    self._decoders = futures.ThreadPoolExecutor(self._threads, 'decode', lambda: cv2.setNumThreads(0))
    self._assembler = futures.ThreadPoolExecutor(1, 'assemble')
    for _ in range(self._prefetch):
      self._begin_next()
    return self

  def __exit__(self, *unused) -> None:
    self._decoders.shutdown(cancel_futures=True)
    self._assembler.shutdown(cancel_futures=True)

  def __iter__(self) -> Self:
    return self

  def __next__(self) -> Batch:
    self._begin_next()
    if not self._pending:
      raise StopIteration
    return self._pending.popleft().result()

  def _begin_next(self) -> None:
    step = next(self._steps, None)
    if step is None:
      return
    parts, finish = self._work(step)
    tasks = [self._decoders.submit(part) for part in parts]
    self._pending.append(self._assembler.submit(_assemble, tasks, finish))


def _assemble(tasks: list[futures.Future], finish: Callable[[], Batch]) -> Batch:
  for task in tasks:
    task.result()
  return finish()
