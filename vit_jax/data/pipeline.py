"""Step number -> global batch, for training and evaluation.

A training batch is a pure function of (config, step), whatever the number of processes, threads and
restarts: the record at global position p = step * batch_size + row comes from Grain's shuffle, which permutes
the records anew in every epoch in constant memory, and its augmentation from a generator keyed by (seed, p).
Epochs do not align with batches: a batch may hold the end of one and the beginning of the next.
"""

import abc
import functools
import math
from collections.abc import Iterator

import grain
import jax
import numpy as np

from vit_jax import config
from vit_jax.data.records import Source
from vit_jax.data.stream import Batch, Stream, Work
from vit_jax.data.transforms import eval_image, train_image
from vit_jax.errors import UserError

_PARTS_PER_THREAD = 4  # of a batch: enough to even out, few enough that small images stay cheap


class _Pipeline(abc.ABC):
  """Makes the rows of global batches that this process's devices hold."""

  def __init__(self, source: Source, data: config.Data, batch_size: int, sharding: jax.sharding.Sharding):
    self._source, self._data, self._batch_size = source, data, batch_size
    self._rows = _Rows(batch_size, sharding)

  @abc.abstractmethod
  def _fill(self, buffers: dict[str, np.ndarray], step: int, span: range) -> None:
    """Makes the local rows `span` of a step's batch."""

  def _buffers(self) -> dict[str, np.ndarray]:
    rows = len(self._rows.numbers)
    return {
      'image': np.zeros((rows, *self._data.image_size, self._data.channels), np.uint8),
      'label': np.zeros(rows, np.int32),
    }

  def _work(self, step: int) -> Work:
    buffers, rows = self._buffers(), range(len(self._rows.numbers))
    size = math.ceil(len(rows) / (self._data.threads * _PARTS_PER_THREAD))
    spans = [rows[start : start + size] for start in range(0, len(rows), size)]
    parts = [functools.partial(self._fill, buffers, step, span) for span in spans]
    return parts, functools.partial(self._rows.to_devices, buffers)

  def _stream(self, steps: range) -> Stream:
    return Stream(self._work, steps, threads=self._data.threads, prefetch=self._data.prefetch)


class TrainPipeline(_Pipeline):
  """Shuffled, augmented training batches.

  A batch is {'image': uint8 (B, H, W, C), 'label': int32 (B,)}, global arrays.
  """

  def __init__(
    self,
    source: Source,
    data: config.Data,
    *,
    batch_size: int,
    seed: int,
    sharding: jax.sharding.Sharding,
  ):
    """
    Args:
      source: the records.
      data: crop, image size, threads, prefetch.
      batch_size: B, over all devices.
      seed: of order and augmentation.
      sharding: of the batch's first axis.

    Raises:
      UserError: a batch that does not divide over the devices, or no records.
    """
    if not len(source):
      raise UserError(f'The training data {data.source!r} has no records; choose another source or split.')
    parts = _parts(sharding)
    if batch_size % parts:
      raise UserError(
        f'config.batch_size {batch_size} does not divide by the {parts} parts that config.mesh makes of it; '
        f'make it a multiple of {parts}.'
      )
    super().__init__(source, data, batch_size, sharding)
    # Grain adds the epoch to the shuffle's seed; derived seeds keep runs with seeds 0 and 1 apart.
    order_seed, augmentation_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
    self._order = grain.MapDataset.range(len(source)).shuffle(seed=order_seed).repeat()
    self._examples = self._order.random_map(self._example, seed=augmentation_seed)

  def indices(self, step: int) -> np.ndarray:
    """int64 (B,): the record numbers of the global batch."""
    first = step * self._batch_size
    return np.array([self._order[p] for p in range(first, first + self._batch_size)], np.int64)

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

  def _fill(self, buffers: dict[str, np.ndarray], step: int, span: range) -> None:
    for row in span:
      position = step * self._batch_size + self._rows.numbers[row]
      buffers['image'][row], buffers['label'][row] = self._examples[position]

  def _example(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    record = self._source[index]
    return train_image(record.image, record.name, self._data, rng), record.label


class EvalPipeline(_Pipeline):
  """Every example of a source exactly once, in order.

  A batch is {'image': uint8 (B, H, W, C), 'label': int32 (B,), 'mask': bool (B,)}, global arrays; where the
  mask is False, the row is padding (zeros). B is the batch size, rounded up to what divides over the devices.
  """

  def __init__(
    self,
    source: Source,
    data: config.Data,
    evaluator: config.Evaluator,
    *,
    batch_size: int,
    sharding: jax.sharding.Sharding,
  ):
    """
    Args:
      source: the records.
      data: image size, channels, threads, prefetch.
      evaluator: crop and resize.
      batch_size: over all devices.
      sharding: of the batch's first axis.
    """
    parts = _parts(sharding)
    super().__init__(source, data, math.ceil(batch_size / parts) * parts, sharding)
    self.examples = len(source)
    self._evaluator = evaluator

  def __len__(self) -> int:
    """The number of batches."""
    return math.ceil(len(self._source) / self._batch_size)

  def __iter__(self) -> Iterator[Batch]:
    """Raises UserError for an image that cannot be decoded, by its name."""
    with self._stream(range(len(self))) as stream:
      yield from stream

  def _buffers(self) -> dict[str, np.ndarray]:
    return super()._buffers() | {'mask': np.zeros(len(self._rows.numbers), bool)}

  def _fill(self, buffers: dict[str, np.ndarray], step: int, span: range) -> None:
    for row in span:
      index = step * self._batch_size + self._rows.numbers[row]
      if index < len(self._source):
        record = self._source[index]
        buffers['image'][row] = eval_image(record.image, record.name, self._data, self._evaluator)
        buffers['label'][row] = record.label
        buffers['mask'][row] = True


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
