"""Predictions of many images, in chunks that are written whole: what is done is not done again."""

import contextlib
import hashlib
import json
import logging
import pathlib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax.data.decode import Picture
from vit_jax.data.prefetch import default_threads, map_ahead
from vit_jax.data.sources.base import Record
from vit_jax.foundation import class_matching, files, pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel
from vit_jax.loading import load
from vit_jax.models.base import Model
from vit_jax.pretrained.base import no_teacher
from vit_jax.selftrain.choosing import Predictions
from vit_jax.selftrain.unlabelled import Unlabelled

_log = logging.getLogger(__name__)

_CHUNK = 4096  # images
_KEPT = 100  # classes of each image, of which the command chooses
_LONGEST_WAIT = 60  # seconds, for other commands to write a small file


class Teachers:
  """Models whose probabilities are averaged, on all devices of this machine."""

  def __init__(self, checkpoints: Sequence[str], batch_size: int):
    """Loads the checkpoints; `batch_size` images at a time are rounded up to what divides over the devices.

    Raises UserError where one cannot be read, has no head, or has other classes than the first.
    """
    self.checkpoints = list(checkpoints)
    self._models = [load(checkpoint) for checkpoint in checkpoints]
    for model in self._models:
      model.squash('Self-training')
    first, orders = self._models[0], []
    named = next((model.class_names for model in self._models if model.class_names), None)
    self.class_names = tuple(named or map(str, range(first.num_classes)))
    for checkpoint, model in zip(checkpoints, self._models, strict=True):
      if not model.num_classes:
        raise no_teacher(checkpoint)
      if model.num_classes != first.num_classes or model.link != first.link:
        raise UserError(
          f'{checkpoint} has {model.num_classes} classes by {model.link}, and {checkpoints[0]} has '
          f'{first.num_classes} by {first.link}; choose teachers that were trained on the same classes.'
        )
      matched = class_matching.rows(
        model.class_names or (),
        self.class_names,
        outputs=model.num_classes,
        what=checkpoint,
        remedy=f'choose teachers of the same classes as {checkpoints[0]}',
      )
      for note in matched.notes:
        _log.warning('%s', note)
      in_order = np.array_equal(matched.rows, np.arange(first.num_classes))
      orders.append(None if in_order else matched.rows)
    # By these a model differs from another one at the same place.
    self.digests = [_digest(*pair) for pair in zip(self._models, orders, strict=True)]
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()), ('data',))
    self._batch_sharding = NamedSharding(mesh, PartitionSpec('data'))
    whole = NamedSharding(mesh, PartitionSpec())
    self._batch_size = -(-batch_size // mesh.size) * mesh.size
    split = [nnx.split(model.module) for model in self._models]
    self._params = jax.device_put([state for _, state in split], whole)
    graphs, kept = [graph for graph, _ in split], min(first.num_classes, _KEPT)

    def best(params: Sequence[Any], images: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
      each = []
      for graph, state, inputs, order in zip(graphs, params, images, orders, strict=True):
        model: Model = nnx.merge(graph, state)
        probabilities = first.probabilities(model(inputs))
        each.append(probabilities if order is None else probabilities[:, order])
      return jax.lax.top_k(jnp.stack(each).mean(axis=0), kept)

    self._best = jax.jit(best, out_shardings=whole)

  def predict(self, source: Unlabelled, numbers: range) -> Predictions:
    """The predictions of some images; those that cannot be read are named in the log."""
    parts = []
    for count, inputs, readable in self._batches(source, numbers):
      on_devices = [jax.device_put(each, self._batch_sharding) for each in inputs]
      probabilities, classes = (np.asarray(each)[:count] for each in self._best(self._params, on_devices))
      classes = np.where(readable[:, None], classes, -1).astype(np.int32)
      parts.append(Predictions(classes, np.where(readable[:, None], probabilities, 0).astype(np.float32)))
    return joined(parts)

  def _batches(
    self, source: Unlabelled, numbers: range
  ) -> Iterator[tuple[int, list[np.ndarray], np.ndarray]]:
    """(images, the input of each model, bool (images,): which could be read), made while the last one is computed."""

    def prepared(number: int) -> list[np.ndarray] | None:
      try:
        return self._inputs(source[number])
      except (UserError, OSError) as error:
        _log.warning('%s', error)
        return None

    groups = [numbers[start : start + self._batch_size] for start in range(0, len(numbers), self._batch_size)]
    for rows in map_ahead(prepared, groups, default_threads(source.is_remote)):
      yield len(rows), self._stacked(rows), np.array([row is not None for row in rows])

  def _inputs(self, record: Record) -> list[np.ndarray]:
    """An image as the input of each model, (H, W, C)."""
    result = []
    for model in self._models:
      picture = Picture(record.image, model.preprocess.channels, record.name)
      result.append(model.preprocess([picture.pixels()])[0])
    return result

  def _stacked(self, rows: Sequence[list[np.ndarray] | None]) -> list[np.ndarray]:
    """The batch of each model, (batch size, H, W, C), with zeros for what is missing: one shape is compiled."""
    result = []
    for number, model in enumerate(self._models):
      batch = np.zeros((self._batch_size, *model.preprocess.size, model.preprocess.channels), np.float32)
      for place, row in enumerate(rows):
        if row is not None:
          batch[place] = row[number]
      result.append(batch)
    return result


def _digest(model: LoadedModel, order: np.ndarray | None) -> str:
  """A digest of a model's parameters, preprocessing, link and order of classes, the same on every machine."""
  digest = hashlib.blake2b(repr((model.preprocess, model.link)).encode(), digest_size=16)
  if order is not None:
    digest.update(repr(order.tolist()).encode())
  for path, leaf in pytrees.flatten(nnx.to_pure_dict(nnx.state(model.module))).items():
    array = np.ascontiguousarray(leaf)
    digest.update(f'{path} {array.dtype} {array.shape}\n'.encode())
    digest.update(array.reshape(-1).view(np.uint8).data)
  return digest.hexdigest()


class Chunks:
  """The predictions in a workdir, to which several commands may write at the same time."""

  def __init__(self, workdir: pathlib.Path, teachers: Teachers, source: Unlabelled):
    """Claims the workdir: a new folder, or that of the same work; UserError for one of other teachers or images."""
    self._workdir, self._folder, self._images = workdir, workdir / 'predictions', len(source)
    files.make_directories(self._folder)
    settings = {
      'teachers': teachers.checkpoints,
      'images': source.identity,
      **{
        f'contents of {name}': digest
        for name, digest in zip(teachers.checkpoints, teachers.digests, strict=True)
      },
      'contents of the images': source.version,
    }
    path = workdir / 'selftrain.json'
    with self._locked():
      if not path.exists():
        files.write_json(path, settings)
      there = _settings(path)
      for name, new in settings.items():
        if (old := there.get(name)) != new:
          raise UserError(
            f'{workdir} has predictions of other {name}: {old!r}, not {new!r}; choose another --workdir.'
          )

  def label(
    self, teachers: Teachers, source: Unlabelled, part: tuple[int, int], progress: Callable[[int], Any]
  ) -> None:
    """Predicts what is missing of a part (number, parts); `progress` is called with the images that are done."""
    for number, chunk in enumerate(self._chunks()):
      if number % part[1] != part[0]:
        continue
      path = self._path(number)
      if not path.exists():
        predictions = teachers.predict(source, chunk)
        # Another command may have written it too: the same bytes.
        with self._locked(), files.atomic_write(path, 'wb') as file:
          np.savez(file, **predictions._asdict())
      progress(len(chunk))

  def read(self) -> Predictions:
    """All predictions; UserError where a file of them is damaged."""
    parts = []
    for number, chunk in enumerate(self._chunks()):
      path = self._path(number)
      try:
        with np.load(path, allow_pickle=False) as arrays:
          parts.append(Predictions(arrays['classes'], arrays['probabilities']))
        if len(parts[-1].classes) != len(chunk):
          raise ValueError(f'it has {len(parts[-1].classes)} images of {len(chunk)}')
      except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
          f'{path} is damaged ({error}); remove it and start the same command again.'
        ) from error
    return joined(parts)

  def _chunks(self) -> list[range]:
    return [range(start, min(start + _CHUNK, self._images)) for start in range(0, self._images, _CHUNK)]

  def _path(self, number: int) -> pathlib.Path:
    return self._folder / f'{number:06}.npz'

  @contextlib.contextmanager
  def _locked(self) -> Iterator[None]:
    """Keeps other commands from writing in the workdir meanwhile: one for each part may have begun at once."""
    lock = self._workdir / 'selftrain.lock'
    try:
      with filelock.FileLock(lock, timeout=_LONGEST_WAIT):
        yield
    except filelock.Timeout:
      raise UserError(
        f'Another command has held {lock} for {_LONGEST_WAIT} seconds; stop it, or start again when it is done.'
      ) from None


def _settings(path: pathlib.Path) -> dict[str, Any]:
  """What a workdir's predictions are of; UserError where the file is damaged."""
  try:
    settings = json.loads(path.read_bytes())
    if not isinstance(settings, dict):
      raise ValueError('it is not a JSON object')
  except (OSError, ValueError) as error:
    raise UserError(f'{path} is damaged ({error}); choose another --workdir.') from error
  return settings


def joined(parts: Sequence[Predictions]) -> Predictions:
  """Predictions of consecutive images as one."""
  classes, probabilities = zip(*parts, strict=True)
  return Predictions(np.concatenate(classes), np.concatenate(probabilities))
