"""Which record stands at which position of a run: a pure function, in constant memory.

A run is an endless sequence of positions, B of them a step. Each part of the data (a source, or one source of
a mixture) is passed through again and again, in a new order each time; a pass visits each of its records
exactly once. Nothing is drawn at random on the way, so any position can be asked for at any time.
"""

import fractions
import functools
import itertools
from collections.abc import Sequence

import numpy as np
from grain.experimental import index_shuffle

# Grain permutes ranges of 2¹⁶ and more; in a smaller one it walks through that many to find the next that
# is within, 32 µs at this size and 1.5 ms at 10 records.
_TINY = 512
_ROUNDS = 4  # of Grain's cipher; more cost time and change every run's order


class Order:
  """position -> number of a record; the parts' records are numbered one after the other."""

  def __init__(self, sizes: Sequence[int], weights: Sequence[float], seeds: Sequence[int]):
    """
    Args:
      sizes: records of each part.
      weights: each part's share of the positions, times any factor.
      seeds: of each part's shuffles, below 2³².
    """
    self._shuffles = [_Shuffle(size, seed) for size, seed in zip(sizes, seeds, strict=True)]
    self._firsts = [0, *itertools.accumulate(sizes)][:-1]
    exact = [fractions.Fraction(weight) for weight in weights]
    # The share of each part among itself and the later ones.
    self._shares = [
      (weight / sum(exact[number:])).as_integer_ratio() for number, weight in enumerate(exact[:-1])
    ]

  def __getitem__(self, position: int) -> int:
    part, position = self.part(position)
    return self._firsts[part] + self._shuffles[part][position]

  def part(self, position: int) -> tuple[int, int]:
    """The part that a position belongs to, and how many earlier positions do.

    Of the first n positions, floor(n · share) belong to the first part; of those left, the second one has its
    share in the same way, and so on. Integers keep that exact at any position.
    """
    for number, (numerator, denominator) in enumerate(self._shares):
      before = position * numerator // denominator
      if (position + 1) * numerator // denominator > before:
        return number, before
      position -= before
    return len(self._shares), position


class _Shuffle:
  """Position among all passes -> index of a record, each once in every pass."""

  def __init__(self, size: int, seed: int):
    self._size, self._seed = size, seed
    self._permutation = functools.lru_cache(maxsize=16)(self._tiny_permutation)

  def __getitem__(self, position: int) -> int:
    done, index = divmod(position, self._size)
    if self._size < _TINY:
      return int(self._permutation(done)[index])
    seed = (self._seed + done) % 2**32
    return index_shuffle(index, max_index=self._size - 1, seed=seed, rounds=_ROUNDS)

  def _tiny_permutation(self, done: int) -> np.ndarray:
    # Raw bits are the part of NumPy's randomness that stays the same in every version of it.
    return np.argsort(np.random.Philox(key=[self._seed, done]).random_raw(self._size), kind='stable')
