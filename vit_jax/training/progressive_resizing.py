"""Images that grow during training (config.data.grow): which size a step trains at."""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable

from vit_jax import config as config_lib
from vit_jax import durations
from vit_jax.config import Config
from vit_jax.data.config import DataConfig
from vit_jax.errors import UserError
from vit_jax.models import variants

Size = tuple[int, int]


class Growth:
  """The image size of every step, a pure function of the config: a run that is resumed goes on with its own.

  Attributes:
    sizes: (height, width) of the stages, in order; the last is data.image_size.
  """

  def __init__(self, config: Config, *, examples: int):
    """
    Args:
      config: the run.
      examples: training images an epoch.

    Raises:
      UserError: stages out of order, or of sizes that the patch does not divide.
    """
    self._data = config.data
    self._total = durations.steps(config.total, batch_size=config.batch_size, examples=examples)
    to_steps = functools.partial(
      durations.steps, batch_size=config.batch_size, examples=examples, total=self._total
    )
    self._ends = [to_steps(until) for until, _ in config.data.grow] + [self._total]
    height, width = config.data.image_size
    self.sizes: tuple[Size, ...] = (
      *((pixels, round(pixels * width / height)) for _, pixels in config.data.grow),
      (height, width),
    )
    for quantity, values in (('duration', [0, *self._ends]), ('size', [size[0] for size in self.sizes])):
      if any(later <= earlier for earlier, later in itertools.pairwise(values)):
        raise UserError(
          f'config.data.grow is {config.data.grow}; each {quantity} must be larger than the one before, and '
          f'the last smaller than that of the whole run, {config.total} at {height} pixels.'
        )
    self._check_patches(config.model)
    self._stages = {size: _at(config.data, size) for size in self.sizes}

  def size(self, step: int) -> Size:
    """Height and width of the images of a step, counted from 0."""
    return self.sizes[min(bisect.bisect_right(self._ends, step), len(self.sizes) - 1)]

  def data(self, step: int) -> DataConfig:
    """The data options of a step: `image_size`, and `resize` and `padding` in proportion to it."""
    return self._stages[self.size(step)]

  def ahead(self, step: int) -> tuple[Size, ...]:
    """The sizes of this and the later steps."""
    return self.sizes[self.sizes.index(self.size(step)) :]

  def sum_before(self, of_size: Callable[[Size], float]) -> Callable[[int], float]:
    """step -> the sum over the steps before it of a quantity that depends on the image size."""
    quantities = [of_size(size) for size in self.sizes]
    stages = list(zip([0, *self._ends], self._ends, quantities))
    return lambda step: sum(max(min(step, end) - begin, 0) * each for begin, end, each in stages)

  def _check_patches(self, model: config_lib.Model) -> None:
    sizes = variants.resolve(model)
    if len(self.sizes) > 1 and sizes.kind == 'mixer':
      raise UserError('An MLP-Mixer works at one resolution; leave config.data.grow out.')
    for size in self.sizes[:-1]:
      variants.grid(sizes, size, option='an image size of config.data.grow,')


def _at(data: DataConfig, size: Size) -> DataConfig:
  ratio = size[0] / data.image_size[0]
  return dataclasses.replace(
    data,
    image_size=size,
    resize=data.resize and round(data.resize * ratio),
    padding=round(data.padding * ratio),
  )
