"""Several sources as one."""

import bisect
import itertools
from collections.abc import Sequence

import numpy as np

from vit_jax.data.sources.base import Record, Source, label_map


class Mixture:
  """The records of several sources, one source after the other, their classes united by name.

  Attributes:
    class_names: those of the first source, then those of the second that the first has not, and so on.
    sizes: records of each source.
    weights: how often each is drawn from in training (`order.py`), up to a factor.
  """

  def __init__(self, sources: Sequence[Source], weights: Sequence[float]):
    self._sources = tuple(sources)
    self.sizes = tuple(map(len, sources))
    self.weights = tuple(weights)
    self.class_names = tuple(dict.fromkeys(name for source in sources for name in source.class_names))
    self._labels = [label_map(source.class_names, self.class_names, 'mixture') for source in sources]
    self._ends = list(itertools.accumulate(self.sizes))

  def __len__(self) -> int:
    return self._ends[-1]

  def __getitem__(self, index: int) -> Record:
    part = bisect.bisect_right(self._ends, index)
    record = self._sources[part][index - self._ends[part] + self.sizes[part]]
    labels = self._labels[part][record.label]
    return record._replace(label=labels if np.ndim(labels) else int(labels))
