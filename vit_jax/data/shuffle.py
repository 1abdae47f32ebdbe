"""Which record stands at which position of a run: a pure function, in constant memory.

A run is an endless sequence of positions, B of them per step. Each part of the data (a source, or one source
of a mixture) is passed through again and again, in a new order each time; every pass visits each of its
records exactly once. There is no state, so any position can be asked for at any time.
"""

import fractions
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

# Parts of fewer than 512 records are ordered by NumPy, others as by `index_shuffle` of the library Grain: four rounds
# of the block cipher Simon (https://eprint.iacr.org/2013/404) permute a range of at least 2¹⁶ numbers, and what is out
# of range is permuted again. Below 2¹⁶ records that would be slow, and a pass's permutation is kept in memory.
_SMALL, _KEPT = 512, 2**16
_ROUNDS = 4
_UINT32 = 2**32 - 1


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
    if self._size < _KEPT:
      return int(self._permutation(passes)[index])
    keys, word = self._cipher(passes)
    index = _encrypted(index, keys, word)
    while index >= self._size:
      index = _encrypted(index, keys, word)
    return index

  def _small_permutation(self, passes: int) -> np.ndarray:
    if self._size < _SMALL:
      # Raw bits are the part of NumPy's randomness that stays the same in all its versions.
      return np.argsort(np.random.Philox(key=[self._seed, passes]).random_raw(self._size), kind='stable')
    following = _encrypted(np.arange(_KEPT), *self._cipher(passes))
    places = following[: self._size].copy()
    while len(outside := np.flatnonzero(places >= self._size)):
      places[outside] = following[places[outside]]
    return places

  def _cipher(self, passes: int) -> tuple[tuple[int, ...], int]:
    """The keys of the rounds of a pass, and the bits of half a block."""
    return _round_keys((self._seed + passes) % 2**32), max(((self._size - 1).bit_length() + 1) // 2, 8)


def _encrypted(number: Any, keys: Sequence[int], word: int) -> Any:
  """A number of 2 `word` bits, or an array of them, permuted among all such numbers."""
  mask = (1 << word) - 1

  def mixed(half: Any) -> Any:
    by_1, by_2, by_8 = (
      half << 1 | half >> word - 1,
      half << 2 | half >> word - 2,
      half << 8 | half >> word - 8,
    )
    return (by_1 & by_8 ^ by_2) & mask

  left, right = number >> word, number & mask
  for key in keys:
    left, right = right, left ^ mixed(right) ^ key & mask
  return left << word | right


@functools.lru_cache(maxsize=64)
def _round_keys(seed: int) -> tuple[int, ...]:
  """The uint32 that C++'s std::seed_seq({seed}) generates, for each round one."""
  count, keys = _ROUNDS, [0x8B8B8B8B] * _ROUNDS
  for k in range(2 * count):
    this, after, second, before = (place % count for place in (k, k + 1, k + 2, k - 1))
    if k < count:
      mixed = keys[this] ^ keys[after] ^ keys[before]
      first = 1664525 * (mixed ^ mixed >> 27)
      added = first + (1, this + seed, this, this)[k]
      keys[after], keys[second] = keys[after] + first & _UINT32, keys[second] + added & _UINT32
    else:
      mixed = keys[this] + keys[after] + keys[before] & _UINT32
      first = 1566083941 * (mixed ^ mixed >> 27)
      added = first - this
      keys[after], keys[second] = keys[after] ^ first & _UINT32, keys[second] ^ added & _UINT32
    keys[this] = added & _UINT32
  return tuple(keys)
