"""Step number -> global batch, for training and evaluation.

A training batch is a pure function of (config, step), whatever the number of processes, threads and
restarts: the record at global position p = step * batch_size + row comes from `order.py`, which permutes
the records anew in every pass in constant memory, and its augmentation from a generator keyed by (seed, p).
Passes do not align with batches: a batch may hold the end of one and the beginning of the next.
For an image that cannot be decoded the example at position p + batch_size, in the same row of the next step,
stands in with its own label, where `data.bad_images` says so: as pure a function. Evaluation never replaces.

With `data.repeats` r, rows i, i + batch_size / r, i + 2 · batch_size / r … of a batch show the same record:
as DeiT does it, devices share the repeats; and neighbours, which mixup mixes, are different records.
"""

import abc
import functools
import math
from collections.abc import Callable, Iterator
from typing import Protocol

import jax
import numpy as np

from vit_jax import config
from vit_jax.data.bad_images import BadImages
from vit_jax.data.config import DataConfig
from vit_jax.data.prefetch import Batch, Stream, Work
from vit_jax.data.rng import Generators
from vit_jax.data.shuffle import Order
from vit_jax.data.sources.base import Record, Source
from vit_jax.data.sources.mixture import Mixture
from vit_jax.data.transforms import eval_image, train_image
from vit_jax.errors import BadImage, UserError

_STAND_INS = 10  # tried for an image that cannot be decoded
_PARTS_PER_THREAD = 4  # of a batch: enough to even out, few enough that small images stay cheap


class _Pipeline(abc.ABC):
  """Makes the rows of global batches that this process's devices hold."""

  def __init__(self, source: Source, data: DataConfig, batch_size: int, sharding: jax.sharding.Sharding):
    self._source, self._data, self._batch_size = source, data, batch_size
    self._rows = _Rows(batch_size, sharding)

  @abc.abstractmethod
  def _fill(self, buffers: dict[str, np.ndarray], step: int, span: range) -> None:
    """Makes the local rows `span` of a step's batch."""

  def _data_at(self, step: int) -> DataConfig:
    """The options of a step's batch."""
    return self._data

  def _buffers(self, step: int) -> dict[str, np.ndarray]:
    data = self._data_at(step)
    rows, most = len(self._rows.numbers), data.max_labels
    return {
      'image': np.zeros((rows, *data.image_size, data.channels), np.uint8),
      'label': np.full((rows, most), -1, np.int32) if most else np.zeros(rows, np.int32),
    }

  def _label(self, record: Record) -> int | np.ndarray:
    """A row of the batch's labels: the record's class, or its list of classes padded with -1.

    Raises:
      UserError: a list that is longer than data.max_labels, or that is not expected at all.
    """
    count, most = np.size(record.label), self._data.max_labels
    if most is None and np.ndim(record.label) == 0:
      return record.label
    if most is None or count > most:
      raise UserError(
        f'{record.name} has a list of {count} classes and config.data.max_labels is {most}; '
        f'set it to the length of the longest list.'
      )
    return np.pad(np.ravel(record.label), (0, most - count), constant_values=-1)

  def _work(self, step: int) -> Work:
    buffers, rows = self._buffers(step), range(len(self._rows.numbers))
    size = math.ceil(len(rows) / (self._data.threads * _PARTS_PER_THREAD))
    spans = [rows[start : start + size] for start in range(0, len(rows), size)]
    parts = [functools.partial(self._fill, buffers, step, span) for span in spans]
    return parts, functools.partial(self._rows.to_devices, buffers)

  def _stream(self, steps: range) -> Stream:
    return Stream(self._work, steps, threads=self._data.threads, prefetch=self._data.prefetch)


class TrainPipeline(_Pipeline):
  """Shuffled, augmented training batches.

  A batch is {'image': uint8 (B, H, W, C), 'label': int32 (B,)}, global arrays; where images have lists of
  classes, 'label' is (B, data.max_labels), padded with -1.
  """

  def __init__(
    self,
    source: Source,
    data: DataConfig,
    *,
    batch_size: int,
    seed: int,
    sharding: jax.sharding.Sharding,
    data_at: Callable[[int], DataConfig] | None = None,
  ):
    """
    Args:
      source: the records.
      data: crop, augmentation, image size, repeats, threads, prefetch.
      batch_size: B, over all devices, a multiple of the repeats.
      seed: of order and augmentation.
      sharding: of the batch's first axis.
      data_at: step -> `data` as it is then, where the image size grows; None: always the same.

    Raises:
      UserError: a batch that does not divide over the devices, or no records.
    """
    if not len(source):
      raise UserError(f'The training data {data.title} has no records; choose another source or split.')
    parts = _parts(sharding)
    if batch_size % parts:
      raise UserError(
        f'config.batch_size {batch_size} does not divide by the {parts} parts that config.mesh makes of it; '
        f'make it a multiple of {parts}.'
      )
    super().__init__(source, data, batch_size, sharding)
    self.bad_images = BadImages()
    sizes, weights = (source.sizes, source.weights) if isinstance(source, Mixture) else ([len(source)], [1])
    # A pass's number is added to the seed of a shuffle; derived seeds keep runs with seeds 0 and 1 apart.
    seeds = np.random.SeedSequence(seed).generate_state(1 + len(sizes)).tolist()
    augmentation_seed = seeds.pop(1)
    self._order = Order(sizes, weights, seeds)
    self._generators = Generators(augmentation_seed)
    self._stage = data_at

  def indices(self, step: int) -> np.ndarray:
    """int64 (B,): the record numbers of the global batch."""
    first = step * self._batch_size
    positions = range(first, first + self._batch_size)
    return np.array([self._record_number(position) for position in positions], np.int64)

  def batch(self, step: int) -> Batch:
    """The batch of a step, of which this process makes the rows its devices need, in this thread.

    Raises:
      UserError: an image that cannot be decoded, by its name.
    """
    parts, finish = self._work(step)
    for part in parts:
      part()
    return finish()

  def stream(self, first_step: int, last_step: int) -> Stream:
    """The batches of steps first_step .. last_step - 1, made ahead by threads: `with ... as batches`."""
    return self._stream(range(first_step, last_step))

  def _data_at(self, step: int) -> DataConfig:
    return self._stage(step) if self._stage else self._data

  def _fill(self, buffers: dict[str, np.ndarray], step: int, span: range) -> None:
    for row in span:
      position = step * self._batch_size + self._rows.numbers[row]
      buffers['image'][row], buffers['label'][row] = self._example_at(position)

  def _example_at(self, position: int) -> tuple[np.ndarray, int | np.ndarray]:
    # A stand-in is of the size of the batch it stands in for.
    data = self._data_at(position // self._batch_size)
    for other in range(position, position + (1 + _STAND_INS) * self._batch_size, self._batch_size):
      try:
        return self._example(other, data)
      except BadImage as error:
        if self._data.bad_images == 'stop':
          text = str(error).rstrip('.')
          raise UserError(f"{text}, or train without it: config.data.bad_images='replace'.") from error
        self.bad_images.add(position // self._batch_size, error)
        last = error
    raise UserError(f'{last} So it is with {1 + _STAND_INS} images one after the other: check the data.')

  def _record_number(self, position: int) -> int:
    step, row = divmod(position, self._batch_size)
    distinct = self._batch_size // self._data.repeats  # records in a batch
    return self._order[step * distinct + row % distinct]

  def _example(self, position: int, data: DataConfig) -> tuple[np.ndarray, int | np.ndarray]:
    record = self._source[self._record_number(position)]
    image = train_image(record.image, record.name, data, self._generators[position])
    return image, self._label(record)


class RealLabels(Protocol):
  """Other labels of a source's records, found by their names; see `evaluation.real_labels`."""

  longest: int  # list

  def of(self, record_name: str) -> np.ndarray: ...


class EvalPipeline(_Pipeline):
  """Every example of a source exactly once, in order.

  A batch is a training batch and 'mask': bool (B,); where the mask is False, the row is padding: black, with
  class 0 or an empty list. B is the batch size, rounded up to what divides over the devices. Where there are
  real labels, 'real' is int32 (B, longest list), padded with -1.
  """

  def __init__(
    self,
    source: Source,
    data: DataConfig,
    *,
    crop: str,
    resize: int | None,
    batch_size: int,
    sharding: jax.sharding.Sharding,
    real_labels: RealLabels | None = None,
  ):
    """
    Args:
      source: the records.
      data: image size, channels, threads, prefetch.
      crop, resize: of EvaluatorConfig.
      batch_size: over all devices.
      sharding: of the batch's first axis.
      real_labels: to go with the images.
    """
    parts = _parts(sharding)
    super().__init__(source, data, math.ceil(batch_size / parts) * parts, sharding)
    self.examples = len(source)
    self._crop, self._resize, self._real = crop, resize, real_labels

  def __len__(self) -> int:
    """The number of batches."""
    return math.ceil(len(self._source) / self._batch_size)

  def __iter__(self) -> Iterator[Batch]:
    """Raises UserError for an image that cannot be decoded, by its name."""
    with self._stream(range(len(self))) as stream:
      yield from stream

  def _buffers(self, step: int) -> dict[str, np.ndarray]:
    rows = len(self._rows.numbers)
    more = {'real': np.full((rows, self._real.longest), -1, np.int32)} if self._real else {}
    return super()._buffers(step) | {'mask': np.zeros(rows, bool)} | more

  def _fill(self, buffers: dict[str, np.ndarray], step: int, span: range) -> None:
    for row in span:
      index = step * self._batch_size + self._rows.numbers[row]
      if index < len(self._source):
        record = self._source[index]
        buffers['image'][row] = eval_image(record.image, record.name, self._data, self._crop, self._resize)
        buffers['label'][row] = self._label(record)
        buffers['mask'][row] = True
        if self._real:
          buffers['real'][row] = self._real.of(record.name)


def _parts(sharding: jax.sharding.Sharding) -> int:
  """Into how many parts a sharding splits the first axis."""
  devices = sharding.num_devices
  return devices // sharding.shard_shape((devices,))[0]


class _Rows:
  """The rows of a global batch that the devices of this process hold."""

  def __init__(self, batch_size: int, sharding: jax.sharding.Sharding):
    self._batch_size, self._sharding = batch_size, sharding
    slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    spans = sorted({rows.indices(batch_size)[:2] for (rows,) in slices})
    self.numbers: list[int] = [row for span in spans for row in range(*span)]
    self._position = {row: position for position, row in enumerate(self.numbers)}

  def to_devices(self, buffers: dict[str, np.ndarray]) -> Batch:
    """Global arrays of the local rows; devices that hold the same rows are given the same ones."""

    def to_device(local: np.ndarray) -> jax.Array:
      def part(index: tuple[slice, ...]) -> np.ndarray:
        first, stop, _ = index[0].indices(self._batch_size)
        start = self._position[first]
        return local[start : start + stop - first]

      return jax.make_array_from_callback((self._batch_size, *local.shape[1:]), self._sharding, part)

    return {name: to_device(local) for name, local in buffers.items()}
