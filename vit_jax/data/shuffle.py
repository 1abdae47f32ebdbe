"""Which record stands at which position of a run: a pure function, in constant memory.

A run is an endless sequence of positions, B of them per step. Each part of the data (a source, or one source
of a mixture) is passed through again and again, in a new order each time; every pass visits each of its
records exactly once. There is no state, so any position can be asked for at any time.
"""

import fractions
import functools
import itertools
from collections.abc import Sequence

import numpy as np
from grain.experimental import index_shuffle

# Grain permutes ranges of at least 2¹⁶ numbers, and skips those out of range: 32 µs per record for a range of
# this size, 1.5 ms for one of 10. Below it, a permutation is kept in memory.
_SMALL = 512
_ROUNDS = 4  # of Grain's cipher; more take longer, and change the order of every run


class Shuffle:
  """Maps a position to the number of a record.

  The records are numbered one part after the other.
  """

  def __init__(self, sizes: Sequence[int], weights: Sequence[float], seeds: Sequence[int]):
    """
    Args:
      sizes: number of records of each part.
      weights: share of the positions of each part, up to a common factor.
      seeds: seed of each part's permutations, below 2³².
    """
    self._parts = [_PartShuffle(size, seed) for size, seed in zip(sizes, seeds, strict=True)]
    self._firsts = [0, *itertools.accumulate(sizes)][:-1]
    exact = [fractions.Fraction(weight) for weight in weights]
    # The share of each part among itself and the later parts: numerator, denominator.
    self._shares = [
      (weight / sum(exact[number:])).as_integer_ratio() for number, weight in enumerate(exact[:-1])
    ]

  def __getitem__(self, position: int) -> int:
    part, position = self.part(position)
    return self._firsts[part] + self._parts[part][position]

  def part(self, position: int) -> tuple[int, int]:
    """The part that a position belongs to, and the number of earlier positions that do.

    Of the first n positions, floor(n · share) belong to the first part. Of the others, the second part gets
    its share in the same way, and so on. Integers keep this exact at any position.
    """
    for number, (numerator, denominator) in enumerate(self._shares):
      before = position * numerator // denominator
      if (position + 1) * numerator // denominator > before:
        return number, before
      position -= before
    return len(self._shares), position


class _PartShuffle:
  """Maps a position among all passes of a part to the index of a record."""

  def __init__(self, size: int, seed: int):
    self._size, self._seed = size, seed
    self._permutation = functools.lru_cache(maxsize=16)(self._small_permutation)

  def __getitem__(self, position: int) -> int:
    passes, index = divmod(position, self._size)
    if self._size < _SMALL:
      return int(self._permutation(passes)[index])
    seed = (self._seed + passes) % 2**32
    return index_shuffle(index, max_index=self._size - 1, seed=seed, rounds=_ROUNDS)

  def _small_permutation(self, passes: int) -> np.ndarray:
    # Raw bits are the part of NumPy's randomness that stays the same in all its versions.
    return np.argsort(np.random.Philox(key=[self._seed, passes]).random_raw(self._size), kind='stable')
