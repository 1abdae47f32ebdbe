"""Maps a step number to its global batch, for training and evaluation.

A training batch is a pure function of (config, step), for any number of processes, threads and restarts. Row
r of step s is the global position s * batch_size + r. `shuffle.py` maps a position to a record, in constant
memory and in a new order in every pass, and the augmentation comes from a generator keyed by (seed,
position). Passes do not align with batches: a batch may hold the end of one and the beginning of the next.

If an image cannot be decoded and `data.bad_images` is 'replace', the example at position + batch_size (the
same row of the next step) takes its place with its own label, which is just as pure a function. Evaluation
never replaces.

With `data.repeats` r, rows i, i + batch_size / r, i + 2 · batch_size / r … of a batch show the same record:
as in DeiT, the repeats are spread over the devices, and neighbours, which mixup mixes, are different records.
"""

import abc
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from vit_jax.data.bad_images import BadImages
from vit_jax.data.config import DataConfig, EvalCrop, ExtraCrops, Resize
from vit_jax.data.decode import Picture
from vit_jax.data.prefetch import Batch, Prefetcher, Work, default_threads
from vit_jax.data.rng import PositionRngs
from vit_jax.data.shuffle import Shuffle
from vit_jax.data.sources.base import Record, Source
from vit_jax.data.transforms import eval_image, extra_crops, train_image
from vit_jax.foundation.errors import BadImage, UserError
from vit_jax.foundation.naflex import Patches
from vit_jax.parallel.mesh import check_batch_divides

_REPLACEMENTS = 10  # tried for an image that cannot be decoded
# A record, and by name what a row of a batch has of it, its label apart.
Example = tuple[Record, dict[str, np.ndarray]]
_TASKS_PER_THREAD = 4  # per batch: enough to even out, few enough that small images stay cheap
_ALIGNMENT = 64  # bytes, of arrays that XLA's CPU client takes as they are instead of copying them


class _Pipeline(abc.ABC):
  """Makes the rows of global batches that this process's devices hold."""

  def __init__(self, source: Source, data: DataConfig, batch_size: int, sharding: jax.sharding.Sharding):
    self._source, self._data, self._batch_size = source, data, batch_size
    self._threads = data.threads or default_threads(source.is_remote)
    self._rows = _LocalRows(batch_size, sharding)

  def _count(self, error: BadImage, bad_images: BadImages, step: int) -> None:
    """Notes a training image that cannot be decoded; UserError where data.bad_images is 'stop'."""
    if self._data.bad_images == 'stop':
      text = str(error).rstrip('.')
      raise UserError(f"{text}, or train without it: config.data.bad_images='replace'.") from error
    bad_images.add(step, error)

  @abc.abstractmethod
  def _fill(self, buffers: dict[str, np.ndarray], step: int, rows: range) -> None:
    """Writes some local rows of a step's batch into its buffers."""

  def _data_at(self, step: int) -> DataConfig:
    """The options of a step's batch."""
    return self._data

  def _buffers(self, step: int) -> dict[str, np.ndarray]:
    """Empty buffers for the local rows of a step's batch."""
    data = self._data_at(step)
    rows = len(self._rows.numbers)
    if data.max_labels is None:
      labels = np.zeros(rows, np.int32)
    else:
      labels = np.full((rows, data.max_labels), -1, np.int32)
    buffers = {'image': _aligned_zeros((rows, *data.input_size, data.channels)), 'label': labels}
    if data.max_patches:
      buffers['grid'] = np.ones((rows, 2), np.int32)
    if data.label_weights:
      buffers['weight'] = np.zeros(labels.shape, np.float32)
    return buffers

  def _set_labels(self, buffers: dict[str, np.ndarray], row: int, record: Record) -> None:
    """Writes the label of a record, and its weights if the run has them, into a row of the buffers."""
    buffers['label'][row] = self._label(record)
    if 'weight' in buffers:
      count = np.size(record.label)
      buffers['weight'][row, :count] = 1 if record.weights is None else record.weights

  def _label(self, record: Record) -> int | np.ndarray:
    """The record's class, or its list padded with -1; UserError for a list that is too long or not expected."""
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
    """The tasks that fill the buffers of a step's batch, and the function that makes the batch of them."""
    buffers, rows = self._buffers(step), range(len(self._rows.numbers))
    size = math.ceil(len(rows) / (self._threads * _TASKS_PER_THREAD))
    spans = [rows[start : start + size] for start in range(0, len(rows), size)]
    tasks = [functools.partial(self._fill, buffers, step, span) for span in spans]
    return tasks, functools.partial(self._rows.to_devices, buffers)

  def _prefetcher(self, steps: range) -> Prefetcher:
    return Prefetcher(self._work, steps, threads=self._threads, prefetch=self._data.prefetch)


class Captions(Protocol):
  """Makes a text for each record (such as `pretrained.captions.Captions`).

  Attributes:
    length: tokens of a text, N.
  """

  length: int

  def of(self, record: Record, rng: np.random.Generator) -> np.ndarray:
    """int32 (N,): the numbers of the tokens of a record's text, drawn where there are several."""
    ...


class TrainPipeline(_Pipeline):
  """Shuffled, augmented training batches.

  A batch is {'image': uint8 (B, H, W, C), 'label': int32 (B,)}, global arrays. With data.max_patches images are columns
  of patches (foundation/naflex.py), and there is 'grid', int32 (B, 2). If images have lists of
  classes, 'label' is (B, data.max_labels), padded with -1; with data.label_weights there is also 'weight',
  float32 of the same shape, padded with 0. With `captions` there is 'text', int32 (B, N), and each of `extra_crops`
  under its name.
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
    captions: Captions | None = None,
    extra_crops: tuple[ExtraCrops, ...] = (),
  ):
    """
    Args:
      source: the records.
      data: crop, augmentation, image size, repeats, threads, prefetch.
      batch_size: B, over all devices, a multiple of data.repeats.
      seed: decides shuffle and augmentation.
      sharding: of the batch's first axis.
      data_at: maps a step to its options, for progressive resizing; None: always `data`.
      captions: makes the images' texts; None: there are none.
      extra_crops: of each image, beside 'image'.

    Raises:
      UserError: no records, or a batch that does not divide over the devices.
    """
    if not len(source):
      raise UserError(f'The training data {data.title} has no records; choose another source or split.')
    check_batch_divides(batch_size, _parts(sharding), 'config.batch_size')
    super().__init__(source, data, batch_size, sharding)
    self.bad_images = BadImages()
    sizes, weights = zip(*source.parts, strict=True)
    # The number of a pass is added to the seed of a shuffle: derived seeds keep runs with seeds 0 and 1 apart.
    seeds = np.random.SeedSequence(seed).generate_state(2 + len(sizes)).tolist()
    augmentation_seed, rows_seed = seeds.pop(1), seeds.pop()
    self._shuffle = Shuffle(sizes, weights, seeds)
    # The sources of a mixture take turns by position; parts of a batch and neighbours in it are to be of any.
    self._rows_shuffle = Shuffle([self._distinct], [1.0], [rows_seed]) if len(sizes) > 1 else None
    self._rngs = PositionRngs(augmentation_seed)
    self._options_at, self._captions, self._extra_crops = data_at, captions, extra_crops

  def indices(self, step: int) -> np.ndarray:
    """int64 (B,): the record numbers of the global batch."""
    first = step * self._batch_size
    positions = range(first, first + self._batch_size)
    return np.array([self._record_number(position) for position in positions], np.int64)

  def batch(self, step: int) -> Batch:
    """The batch of a step, made by this thread; UserError names an image that cannot be decoded."""
    tasks, assemble = self._work(step)
    for task in tasks:
      task()
    return assemble()

  def stream(self, first_step: int, last_step: int) -> Prefetcher:
    """The batches of steps first_step … last_step - 1, made ahead by threads: `with … as batches`."""
    return self._prefetcher(range(first_step, last_step))

  def _data_at(self, step: int) -> DataConfig:
    return self._options_at(step) if self._options_at else self._data

  def _buffers(self, step: int) -> dict[str, np.ndarray]:
    buffers = super()._buffers(step)
    if self._captions:
      buffers['text'] = np.zeros((len(self._rows.numbers), self._captions.length), np.int32)
    for crops in self._extra_crops:
      shape = (len(self._rows.numbers), crops.number, *crops.size, self._data.channels)
      buffers[crops.name] = _aligned_zeros(shape)
    return buffers

  def _fill(self, buffers: dict[str, np.ndarray], step: int, rows: range) -> None:
    for row in rows:
      position = step * self._batch_size + self._rows.numbers[row]
      record, arrays = self._example_at(position, buffers['image'][row])
      self._set_labels(buffers, row, record)
      for name, array in arrays.items():
        buffers[name][row] = array  # nothing, where it is there already

  def _example_at(self, position: int, out: np.ndarray) -> Example:
    """The record of an example and its arrays, images in their step's size; or those of what replaces it.

    Its image may be written to `out`.
    """
    step = position // self._batch_size
    data = self._data_at(step)
    error = None
    for number in range(1 + _REPLACEMENTS):
      try:
        return self._example(position + number * self._batch_size, data, out)
      except BadImage as bad_image:
        error = bad_image
        self._count(bad_image, self.bad_images, step)
    raise UserError(f'{error} So it is with {1 + _REPLACEMENTS} images one after the other: check the data.')

  def _record_number(self, position: int) -> int:
    step, row = divmod(position, self._batch_size)
    first, row = step * self._distinct, row % self._distinct
    if self._rows_shuffle is not None:
      row = self._rows_shuffle[first + row]
    return self._shuffle[first + row]

  @property
  def _distinct(self) -> int:
    """Records of a batch."""
    return self._batch_size // self._data.repeats

  def _example(self, position: int, data: DataConfig, out: np.ndarray) -> Example:
    record, rng = self._source[self._record_number(position)], self._rngs[position]
    image = record.image
    if self._extra_crops:  # decoded once for all
      image = Picture(image, data.channels, record.name).pixels()
    arrays = _arrays(train_image(image, record.name, data, rng, out))
    if self._captions:
      arrays['text'] = self._captions.of(record, rng)
    for crops in self._extra_crops:
      picture = Picture(image, data.channels, record.name)
      arrays[crops.name] = extra_crops(picture, data, crops, rng)
    return record, arrays


class ExtraLabels(Protocol):
  """A second list of labels for each record, found by its name (such as `evaluation.real_labels.RealLabels`).

  Attributes:
    longest: length of the longest list.
  """

  longest: int

  def of(self, record_name: str) -> np.ndarray:
    """int32 (longest,): the labels of a record, padded with -1."""
    ...


class EvalPipeline(_Pipeline):
  """Every example of a source exactly once, in order.

  A batch is a training batch with 'mask', bool (B,): rows whose mask is False are padding, black images with
  class 0 or an empty list. With `real_labels`, it also has 'real', int32 (B, longest list), padded with -1.
  """

  def __init__(
    self,
    source: Source,
    data: DataConfig,
    *,
    crop: EvalCrop | None,
    resize: Resize | None,
    batch_size: int,
    sharding: jax.sharding.Sharding,
    real_labels: ExtraLabels | None = None,
    bad_images: BadImages | None = None,
  ):
    """
    Args:
      source: the records.
      data: image size, channels, mean, std, interpolation, max_labels, threads, prefetch.
      crop: see `Preprocess.of_run`.
      resize: see `Preprocess.of_run`.
      batch_size: over all devices; it is rounded up to what divides over them.
      sharding: of the batch's first axis.
      real_labels: a second list of labels for each record.
      bad_images: notes images that cannot be decoded, whose rows are padding, where the source is the training data;
        None: such an image is an error.
    """
    parts = _parts(sharding)
    super().__init__(source, data, math.ceil(batch_size / parts) * parts, sharding)
    self.examples = len(source)
    self._crop: EvalCrop | None = crop
    self._resize, self._real, self._bad_images = resize, real_labels, bad_images

  def __len__(self) -> int:
    """The number of batches."""
    return math.ceil(len(self._source) / self._batch_size)

  def __iter__(self) -> Iterator[Batch]:
    """Raises UserError for an image that cannot be decoded; the error names it."""
    with self._prefetcher(range(len(self))) as batches:
      yield from batches

  def _buffers(self, step: int) -> dict[str, np.ndarray]:
    buffers = super()._buffers(step)
    rows = len(self._rows.numbers)
    buffers['mask'] = np.zeros(rows, bool)
    if self._real:
      buffers['real'] = np.full((rows, self._real.longest), -1, np.int32)
    return buffers

  def _fill(self, buffers: dict[str, np.ndarray], step: int, rows: range) -> None:
    for row in rows:
      index = step * self._batch_size + self._rows.numbers[row]
      if index < len(self._source):
        record = self._source[index]
        try:
          image = eval_image(record.image, record.name, self._data, self._crop, self._resize)
        except BadImage as error:
          if self._bad_images is None:
            raise
          self._count(error, self._bad_images, 0)
          continue
        for name, array in _arrays(image).items():
          buffers[name][row] = array
        self._set_labels(buffers, row, record)
        buffers['mask'][row] = True
        if self._real:
          buffers['real'][row] = self._real.of(record.name)


def _arrays(image: Any) -> dict[str, np.ndarray]:
  """What a row of a batch has of an image; of one of any shape its column of patches and their grid."""
  return {'image': image.pixels, 'grid': image.grids} if isinstance(image, Patches) else {'image': image}


def _aligned_zeros(shape: tuple[int, ...]) -> np.ndarray:
  """uint8 zeros that a device of the processor shares, so that they must not be written into once it has them."""
  size = math.prod(shape)
  raw = np.zeros(size + _ALIGNMENT, np.uint8)
  start = -raw.ctypes.data % _ALIGNMENT
  return raw[start : start + size].reshape(shape)


def _parts(sharding: jax.sharding.Sharding) -> int:
  """The number of parts into which a sharding splits the first axis."""
  devices = sharding.num_devices
  return devices // sharding.shard_shape((devices,))[0]


class _LocalRows:
  """The rows of a global batch that the devices of this process hold.

  Attributes:
    numbers: their row numbers in the global batch, in order.
  """

  def __init__(self, batch_size: int, sharding: jax.sharding.Sharding):
    self._batch_size, self._sharding = batch_size, sharding
    spans = set()
    for index in sharding.addressable_devices_indices_map((batch_size,)).values():
      assert index is not None
      first, stop, _ = index[0].indices(batch_size)
      spans.add((first, stop))
    self.numbers: list[int] = [row for first, stop in sorted(spans) for row in range(first, stop)]
    self._position = {row: position for position, row in enumerate(self.numbers)}

  def to_devices(self, buffers: dict[str, np.ndarray]) -> Batch:
    """Global arrays of the local rows; devices that hold the same rows get the same ones."""
    return {name: self._to_device(local) for name, local in buffers.items()}

  def _to_device(self, local: np.ndarray) -> jax.Array:
    def rows(index: Any) -> np.ndarray:
      first, stop, _ = index[0].indices(self._batch_size)
      start = self._position[first]
      return local[start : start + stop - first]

    return jax.make_array_from_callback((self._batch_size, *local.shape[1:]), self._sharding, rows)
