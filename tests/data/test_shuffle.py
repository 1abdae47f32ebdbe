"""Every record once per pass, at any position, for any sizes and weights."""

import collections
import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from vit_jax.data.shuffle import Shuffle


@hypothesis.given(
  sizes=st.lists(st.integers(1, 700), min_size=1, max_size=4),
  weights=st.lists(st.floats(0.01, 100), min_size=4, max_size=4),
  seed=st.integers(0, 2**32 - 1),
)
@hypothesis.settings(max_examples=40, deadline=None)
def test_each_pass_of_a_part_visits_each_record_once(sizes, weights, seed):
  shuffle = Shuffle(sizes, weights[: len(sizes)], range(seed % 1000, seed % 1000 + len(sizes)))
  ends = list(itertools.accumulate(sizes))
  visits = collections.defaultdict(list)
  for position in range(2000):
    number = shuffle[position]
    part = int(np.searchsorted(ends, number, side='right'))
    visits[part].append(number - ends[part] + sizes[part])
  for part, numbers in visits.items():
    for first in range(0, len(numbers), sizes[part]):
      one_pass = numbers[first : first + sizes[part]]
      assert len(set(one_pass)) == len(one_pass)
      assert set(one_pass) <= set(range(sizes[part]))
  assert sum(map(len, visits.values())) == 2000


@hypothesis.given(
  weights=st.lists(st.floats(0.01, 100), min_size=2, max_size=5), start=st.integers(0, 10**13)
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_weights_hold_in_any_interval(weights, start):
  """Among any consecutive positions each part has its share, up to one or two positions per part."""
  shuffle = Shuffle([10**9] * len(weights), weights, range(len(weights)))
  expected = collections.Counter()
  for position in range(start, start + 500):
    part, before = shuffle.part(position)
    # The part's own count goes up by one each time.
    assert before == expected.setdefault(part, before)
    expected[part] += 1
  for part, weight in enumerate(weights):
    share = weight / sum(weights)
    count = sum(shuffle.part(position)[0] == part for position in range(start, start + 500))
    assert abs(count - 500 * share) <= len(weights)
    if part in expected:
      assert abs(expected[part] - (start + 500) * share) <= len(weights) + 1e-14 * start


def test_orders_differ_between_passes_and_seeds():
  for size in (100, 2000):
    one, other = Shuffle([size], [1], [0]), Shuffle([size], [1], [2])
    passes = [tuple(one[p] for p in range(first, first + size)) for first in (0, size)]
    passes.append(tuple(other[p] for p in range(size)))
    assert len(set(passes)) == 3


# (records, seed) -> what grain 0.2.18 gives at some positions:
# index_shuffle(p % size, max_index=size - 1, seed=(seed + p // size) % 2**32, rounds=4).
GRAINS_ORDER = {
  (600, 7): [240, 157, 206, 540, 341, 530, 432],
  (1437, 0): [134, 133, 624, 552, 1392, 684, 514],
  (50_000, 4294967295): [10120, 48421, 11881, 28414, 31105, 43938, 42986],
  (70_000, 7): [69573, 40007, 9544, 35395, 63519, 9333, 19462],
  (1_281_167, 0): [1141324, 519272, 647767, 763896, 105501, 665775, 1071484],
  (303_000_000, 5): [52634412, 140923089, 277716163, 127143995, 85932270, 245720701, 278338687],
}


@pytest.mark.parametrize(('size', 'seed'), GRAINS_ORDER)
def test_order_is_that_of_grains_shuffle(size, seed):
  """Runs of earlier versions, which called it, resume in the same order."""
  shuffle = Shuffle([size], [1], [seed])
  positions = (0, 1, 2, size - 1, size, 5 * size // 2, 7 * size + 3)
  assert [shuffle[position] for position in positions] == GRAINS_ORDER[size, seed]


@pytest.mark.slow
def test_a_pass_of_one_record_more_than_a_block_holds_visits_each_once():
  """Grain's takes the smaller block for 4^k + 1 records and loses one of them."""
  shuffle = Shuffle([2**16 + 1], [1], [3])
  assert len({shuffle[position] for position in range(2**16 + 1)}) == 2**16 + 1


def test_small_sets_are_shuffled_uniformly():
  """Each record is at each place of a pass equally often: chi-squared, 49 degrees of freedom, p = 0.001."""
  shuffle = Shuffle([8], [1], [3])
  counts = np.zeros((8, 8))
  for position in range(8 * 4000):
    counts[position % 8, shuffle[position]] += 1
  assert ((counts - 4000 / 8) ** 2 / (4000 / 8)).sum() < 85.4
