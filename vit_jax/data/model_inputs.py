"""Records as the input of a loaded model, batch by batch: what `predict` and `evaluate` read."""

import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import tqdm

from vit_jax.data.decode import Picture
from vit_jax.data.prefetch import default_threads, map_ahead
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.sources.base import Record
from vit_jax.foundation.errors import OutOfReach, UserError


class Inputs(NamedTuple):
  """A batch: the records that could be read, and their images in the first rows."""

  numbers: list[int]  # of the records
  records: list[Record]
  # float32 (batch size, H, W, C), or `Patches`; the rows behind the records are zeros, so that one shape is compiled.
  images: Any


class ModelInputs:
  """Iterates over the batches of some records; threads prepare the next one while the caller has this one.

  Attributes:
    count: how many records there are.
    unreadable: a sentence for each record that could not be read, which stderr has too.
  """

  def __init__(
    self,
    read: Callable[[int], Record],
    count: int,
    preprocess: Preprocess,
    *,
    batch_size: int,
    is_remote: bool = False,
  ):
    """
    Args:
      read: the record of a number from 0 to `count` - 1; UserError or OSError where it cannot be read.
      count: at least one.
      preprocess: of the model.
      batch_size: images in a batch, at most.
      is_remote: as of `Source`.
    """
    self.count = count
    self.unreadable: list[str] = []
    self._read, self._preprocess = read, preprocess
    self._batch_size, self._threads = min(batch_size, count), default_threads(is_remote)

  def __iter__(self) -> Iterator[Inputs]:
    """Gives each record once, in order; a bar on stderr shows how many are done, in a file each half minute."""
    numbers = range(self.count)
    groups = [numbers[start : start + self._batch_size] for start in numbers[:: self._batch_size]]
    pauses: Any = {} if sys.stderr.isatty() else {'delay': 30, 'mininterval': 30}
    with tqdm.tqdm(total=self.count, unit='image', **pauses) as bar:
      for group, results in zip(groups, map_ahead(self._prepared, groups, self._threads), strict=True):
        batch, images = Inputs([], [], None), []
        for number, result in zip(group, results, strict=True):
          if isinstance(result, Exception):
            self.unreadable.append(str(result))
            tqdm.tqdm.write(str(result), file=sys.stderr)
          else:
            batch.numbers.append(number)
            batch.records.append(result[0])
            images.append(result[1])
        if images:
          yield batch._replace(images=jax.tree.map(self._filled, *images))
        bar.update(len(group))

  def check(self) -> None:
    """Raises UserError, with the counts, if records could not be read."""
    if self.unreadable:
      raise UserError(
        f'{len(self.unreadable)} of {self.count} images could not be read and are left out; restore or remove them.'
      )

  def _filled(self, *rows: np.ndarray) -> np.ndarray:
    """The rows of images as those of a batch, (batch size, ...), and zeros."""
    result = np.zeros((self._batch_size, *rows[0].shape), rows[0].dtype)
    result[: len(rows)] = rows
    return result

  def _prepared(self, number: int) -> tuple[Record, Any] | Exception:
    """A record and its image, (H, W, C) or `Patches`, or why there is none."""
    try:
      record = self._read(number)
      picture = Picture(record.image, self._preprocess.channels, record.name)
      return record, jax.tree.map(operator.itemgetter(0), self._preprocess([picture.pixels()]))
    except OutOfReach:
      raise
    except (UserError, OSError) as error:
      return error
