"""Progressive resizing (config.data.progressive_resizing): smaller images at first."""

import bisect
import dataclasses
import itertools
from collections.abc import Callable

from vit_jax.config import Config
from vit_jax.data.config import DataConfig
from vit_jax.foundation.errors import UserError
from vit_jax.training.timeline import Timeline

Size = tuple[int, int]


class ProgressiveResizing:
  """The image size of every step, a pure function of the config, so that a resumed run goes on with its own."""

  def __init__(self, config: Config, timeline: Timeline):
    """Raises UserError for stages out of order, or of sizes that the model does not take."""
    stages = config.data.progressive_resizing
    height, width = config.data.image_size
    self._ends = [timeline.steps(until) for until, _ in stages] + [timeline.total]
    smaller = [(pixels, round(pixels * width / height)) for _, pixels in stages]
    self.sizes: tuple[Size, ...] = (*smaller, (height, width))  # of the stages, in order
    for quantity, values in (('duration', [0, *self._ends]), ('size', [size[0] for size in self.sizes])):
      if stages and any(later <= earlier for earlier, later in itertools.pairwise(values)):
        raise UserError(
          f'config.data.progressive_resizing is {stages}; each {quantity} must be larger than the one '
          f'before, and the last smaller than that of the whole run, {config.total} at {height} pixels.'
        )
    if smaller and not config.model.any_image_size:
      title = config.model.title
      raise UserError(
        f'{title[0].upper()}{title[1:]} works at one resolution; leave config.data.progressive_resizing out.'
      )
    for size in smaller:
      config.model.grid(size, option='an image size of config.data.progressive_resizing,')
    self._stages = {size: _data_at(config.data, size) for size in self.sizes}

  def size(self, step: int) -> Size:
    """Height and width of the images of a step, counted from 0."""
    return self.sizes[min(bisect.bisect_right(self._ends, step), len(self.sizes) - 1)]

  def data(self, step: int) -> DataConfig:
    """The data options of a step: `image_size`, and `resize` and `padding` in proportion to it."""
    return self._stages[self.size(step)]

  def sizes_from(self, step: int) -> tuple[Size, ...]:
    """The sizes of this and the later steps."""
    return self.sizes[self.sizes.index(self.size(step)) :]

  def sum_before(self, of_size: Callable[[Size], float]) -> Callable[[int], float]:
    """step -> the sum over the steps before it of a quantity that depends on the image size."""
    quantities = [of_size(size) for size in self.sizes]
    stages = list(zip([0, *self._ends], self._ends, quantities, strict=False))

    def total(step: int) -> float:
      return sum(max(min(step, end) - begin, 0) * each for begin, end, each in stages)

    return total


def _data_at(data: DataConfig, size: Size) -> DataConfig:
  """The data options at another image size."""
  ratio = size[0] / data.image_size[0]
  padding = min(round(data.padding * ratio), min(size) - 1)  # less than the image, as config.check demands
  data = dataclasses.replace(data, image_size=size, padding=padding)
  if data.resize is None:
    return data
  return dataclasses.replace(data, resize=max(round(data.resize * ratio), data.smallest_resize))
