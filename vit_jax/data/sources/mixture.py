"""Several sources as one."""

import bisect
import itertools
from collections.abc import Sequence

import numpy as np

from vit_jax.data.sources.base import Part, Record, Source, label_map


class Mixture(Source):
  """The records of several sources, one source after the other, with their classes united by name.

  Attributes:
    class_names: the first source's classes, then those of the second that are new, and so on; also those of a
      source without records.
  """

  def __init__(
    self, sources: Sequence[Source], weights: Sequence[float], class_names: Sequence[str] | None = None
  ):
    """`weights`: how often training draws from each source, up to a common factor."""
    filled = [(source, weight) for source, weight in zip(sources, weights, strict=True) if len(source)]
    self._sources = tuple(source for source, _ in filled)
    self._parts = tuple(Part(len(source), weight) for source, weight in filled)
    united = dict.fromkeys(name for source in sources for name in source.class_names)
    self.class_names = tuple(class_names or united)
    self._label_maps = [
      label_map(source.class_names, self.class_names, 'mixture') for source in self._sources
    ]
    self._ends = list(itertools.accumulate(part.size for part in self._parts))

  @property
  def parts(self) -> tuple[Part, ...]:
    return self._parts

  @property
  def is_remote(self) -> bool:
    return any(source.is_remote for source in self._sources)

  def version(self) -> str:
    return _joined([source.version() for source in self._sources])

  def sums(self) -> str:
    return _joined([source.sums() for source in self._sources])

  def __len__(self) -> int:
    return self._ends[-1]

  def __getitem__(self, index: int) -> Record:
    number = bisect.bisect_right(self._ends, index)
    first = self._ends[number] - self._parts[number].size
    record = self._sources[number][index - first]
    labels = self._label_maps[number][record.label]
    return record._replace(label=labels if np.ndim(labels) else int(labels))

  def labels(self) -> np.ndarray:
    """As `Source.labels`; if one of the sources has lists of classes, every record has."""
    mapped = []
    for source, numbers in zip(self._sources, self._label_maps, strict=True):
      labels = source.labels()
      mapped.append(numbers[labels].astype(np.int32))
    if all(labels.ndim == 1 for labels in mapped):
      return np.concatenate(mapped)
    lists = [labels.reshape(len(labels), -1) for labels in mapped]
    longest = max(labels.shape[1] for labels in lists)
    padded = [
      np.pad(labels, ((0, 0), (0, longest - labels.shape[1])), constant_values=-1) for labels in lists
    ]
    return np.concatenate(padded)


def _joined(texts: Sequence[str]) -> str:
  return '; '.join(texts) if any(texts) else ''
