"""Keeps the records of a source in memory once they are read (config.data.cache)."""

import numpy as np

from vit_jax.data.decode import Picture
from vit_jax.data.sources.base import Part, Record, Source
from vit_jax.foundation.errors import BadImage


class Cached(Source):
  """A source that reads each record once; images are kept in the form that `Picture.lasting` gives them."""

  def __init__(self, source: Source, channels: int):
    self.class_names = source.class_names
    self._source, self._channels = source, channels
    self._kept: dict[int, Record] = {}

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> Record:
    record = self._kept.get(index)
    if record is None:  # two threads may read the same one, which does no harm
      record = self._kept[index] = self._decoded(self._source[index])
    return record

  @property
  def is_remote(self) -> bool:
    return self._source.is_remote

  def version(self) -> str:
    return self._source.version()

  def sums(self) -> str:
    return self._source.sums()

  def labels(self) -> np.ndarray:
    return self._source.labels()

  @property
  def parts(self) -> tuple[Part, ...]:
    return self._source.parts

  def _decoded(self, record: Record) -> Record:
    if isinstance(record.image, np.ndarray):
      return record
    try:
      return record._replace(image=Picture(record.image, self._channels, record.name).lasting)
    except BadImage:  # whoever asks for its pixels is told
      return record
