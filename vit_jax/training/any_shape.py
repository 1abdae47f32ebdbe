"""Images of any shape (config.data.max_patches): every step has batches of one of a few lengths, compiled once each."""

import dataclasses
from collections.abc import Callable

from vit_jax.data.config import DataConfig

Size = tuple[int, int]


class SequenceLengths:
  """The length of the batch of every step, in turn; a pure function of the config, as `ProgressiveResizing`.

  A length of N patches is written as the size of their column, (N P, P) pixels.
  """

  def __init__(self, data: DataConfig):
    self.sizes: tuple[Size, ...] = tuple((number * data.patch, data.patch) for number in data.max_patches)
    self._data = [dataclasses.replace(data, max_patches=(number,)) for number in data.max_patches]

  def size(self, step: int) -> Size:
    """The size of the columns of patches of a step, counted from 0."""
    return self.sizes[step % len(self.sizes)]

  def data(self, step: int) -> DataConfig:
    """The data options of a step."""
    return self._data[step % len(self.sizes)]

  def sizes_from(self, step: int) -> tuple[Size, ...]:
    """The sizes of this and the later steps."""
    return tuple(dict.fromkeys(self.sizes))

  def sum_before(self, of_size: Callable[[Size], float]) -> Callable[[int], float]:
    """step -> the sum over the steps before it of a quantity that depends on the size."""
    quantities = [of_size(size) for size in self.sizes]
    return lambda step: sum(
      each * ((step - 1 - at) // len(quantities) + 1) for at, each in enumerate(quantities)
    )
