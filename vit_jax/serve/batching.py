"""Single images of many requests run through a model in batches, whose sizes are compiled beforehand."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]  # (B, H, W, C) -> (B, …)


class _Item(NamedTuple):
  function: str
  image: np.ndarray  # (H, W, C)
  answer: Future[np.ndarray]
  arrived: float


def sizes_up_to(largest: int) -> list[int]:
  """The powers of two below `largest`, and `largest`."""
  return [1 << power for power in range((largest - 1).bit_length())] + [largest]


class Batcher:
  """A thread that runs functions on what waits, as soon as there is a batch or the first image has waited enough.

  A batch that is not full has zeros in its last rows. Of the compiled sizes it takes the one that answers the most of
  the waiting images a second, by the times that they took: an accelerator computes eight nearly as fast as five, a
  processor four and then one.
  """

  def __init__(
    self,
    functions: Mapping[str, Function],
    example: np.ndarray,
    largest: int,
    delay: float,
    on_batch: Callable[[int, int], None] = lambda images, size: None,
  ):
    """
    Args:
      functions: by name; each gives a row an image.
      example: an image.
      largest: images in a batch, at most.
      delay: seconds that an image waits for others while nothing runs, at most.
      on_batch: called after each batch with the number of its images, and its size with padding.
    """
    self._functions, self._zeros, self._on_batch = functions, np.zeros_like(example), on_batch
    self.sizes, self._delay = sizes_up_to(largest), delay
    self._seconds = dict.fromkeys(self.sizes, 0.0)  # that a batch of a size takes
    self._changed = threading.Condition()
    self._waiting: list[_Item] = []
    self._closing = False
    self._thread = threading.Thread(target=self._run, name='batches', daemon=True)

  def start(self) -> None:
    """Compiles every function for every size, measures the sizes by the first, and begins to run what was submitted."""
    first = next(iter(self._functions))
    for name, function in self._functions.items():
      for size in self.sizes:
        zeros = np.stack([self._zeros] * size)
        function(zeros)  # compiles
        if name == first:
          begin = time.monotonic()
          function(zeros)
          self._seconds[size] = time.monotonic() - begin
    self._thread.start()

  @property
  def quickest(self) -> int:
    """The size that computes the most images a second."""
    return self._best_size(self.sizes[-1])

  @property
  def images_per_second(self) -> float:
    """How many images the model computes a second, in batches of the quickest size."""
    return self.quickest / max(self._seconds[self.quickest], 1e-9)

  def submit(self, function: str, image: np.ndarray) -> Future[np.ndarray]:
    """The row of an image (H, W, C), when it has been computed; any thread may ask."""
    item = _Item(function, image, Future(), time.monotonic())
    with self._changed:
      self._waiting.append(item)
      self._changed.notify()
    return item.answer

  def close(self) -> None:
    """Answers what waits, and ends the thread."""
    with self._changed:
      self._closing = True
      self._changed.notify()
    if self._thread.ident is not None:  # it was started
      self._thread.join()

  def _run(self) -> None:
    while chosen := self._next():
      items = [item for item in chosen if item.answer.set_running_or_notify_cancel()]  # others were cancelled
      if not items:
        continue
      size = next(size for size in self.sizes if size >= len(items))
      batch = np.stack([*(item.image for item in items), *[self._zeros] * (size - len(items))])
      begin = time.monotonic()
      try:
        rows = self._functions[items[0].function](batch)
      except Exception as error:  # the device failed, say: these requests fail, and the next batch is tried
        for item in items:
          item.answer.set_exception(error)
        continue
      self._seconds[size] += 0.1 * (time.monotonic() - begin - self._seconds[size])
      self._on_batch(len(items), size)
      for row, item in zip(rows, items):
        item.answer.set_result(row)

  def _next(self) -> list[_Item]:
    """The next images to be run, of one function; waits for them. [] after the last."""
    with self._changed:
      while not self._closing or self._waiting:
        if not self._waiting:
          self._changed.wait()
          continue
        oldest = self._waiting[0]
        patience = oldest.arrived + self._delay - time.monotonic()
        if patience > 0 and len(self._waiting) < self.sizes[-1] and not self._closing:
          self._changed.wait(patience)
          continue
        alike = [item for item in self._waiting if item.function == oldest.function]
        chosen = alike[: self._best_size(len(alike))]
        taken = set(map(id, chosen))
        self._waiting = [item for item in self._waiting if id(item) not in taken]
        return chosen
    return []

  def _best_size(self, waiting: int) -> int:
    """The size that answers the most of so many images a second; of equals the largest."""
    return max(reversed(self.sizes), key=lambda size: min(waiting, size) / max(self._seconds[size], 1e-9))

  def seconds_until_free(self) -> int:
    """After how many whole seconds what waits now will have been answered, about; at least one."""
    return max(1, math.ceil(len(self._waiting) / self.images_per_second))
