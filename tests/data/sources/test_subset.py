"""Records chosen by class, against counting them one by one."""

import collections
import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source, open_training, subset
from vit_jax.data.sources.base import Part, Source
from vit_jax.foundation.errors import UserError


class Labelled(Source):
  """Labels without images: record i is the number i."""

  def __init__(self, labels):
    self._labels = np.asarray(labels, np.int32)
    self.class_names = tuple('abcdef')

  def __len__(self):
    return len(self._labels)

  def __getitem__(self, index):
    return index

  def labels(self):
    return self._labels


def chosen(source):
  return [source[i] for i in range(len(source))]


LISTS = st.lists(st.lists(st.integers(-1, 5), min_size=3, max_size=3), min_size=1, max_size=60)
SINGLE = st.lists(st.integers(0, 5), min_size=1, max_size=60)


@hypothesis.given(labels=LISTS | SINGLE, names=st.sets(st.sampled_from('abcdefx')))
def test_of_classes_keeps_records_with_one_of_them(labels, names):
  source = Labelled(labels)
  numbers = {'abcdef'.index(name) for name in names - {'x'}}
  expected = [i for i, own in enumerate(labels) if numbers & set(np.ravel(own).tolist())]
  result = subset.of_classes(source, tuple(names))
  assert chosen(result) == expected and result.class_names == source.class_names
  np.testing.assert_array_equal(result.labels(), source.labels()[expected])


@hypothesis.given(labels=LISTS | SINGLE, count=st.integers(1, 8), seed=st.integers(0, 2**32 - 1))
def test_at_most_limits_every_class(labels, count, seed):
  kept = chosen(subset.at_most(Labelled(labels), count, seed))
  assert kept == sorted(kept)
  own = [set(np.ravel(label).tolist()) - {-1} for label in labels]
  there, left = (collections.Counter(k for i in some for k in own[i]) for some in (range(len(labels)), kept))
  assert all(number <= count for number in left.values())
  if np.ndim(labels) == 1:
    assert all(left[k] == min(there[k], count) for k in there)
  # Records without a class, or of rare classes only, are kept.
  assert all(i in kept for i in range(len(labels)) if all(there[k] <= count for k in own[i]))


def test_seed_chooses_among_the_records_of_a_class():
  source = Labelled(np.repeat(np.arange(6), 50))
  first, again, other = (chosen(subset.at_most(source, 5, seed)) for seed in (0, 0, 1))
  assert first == again != other and len(first) == len(other) == 30
  # Not the first ones of each class.
  assert np.mean([i % 50 for i in first]) > 10


@pytest.fixture
def shades(shades_dir, tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(shades_dir))
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))


def test_classes_and_max_per_class_select_records(shades):
  data = DataConfig(source='tfds:shades', classes=('light', 'dark'))
  source = open_training(data, 0)
  assert source.class_names == ('dark', 'middle', 'light')
  assert sorted(source.labels()) == [0, 0, 0, 0, 2, 2, 2]
  assert {source[i].label for i in range(7)} == {0, 2} and source[0].name.startswith('shades/1.2.0/train rec')
  test = open_source('tfds:shades', 'test', data=data, class_names=source.class_names)
  assert 1 not in test.labels() and 0 < len(test) < 4
  mixture = (('tfds:shades', 1.0), ('digits', 1.0))
  some = open_training(DataConfig(mixture=mixture, classes=('light', '3'), max_per_class=2), 0)
  assert [part.size for part in some.parts] == [2, 2] and {some[i].label for i in range(4)} == {2, 6}
  light = open_training(DataConfig(mixture=(('digits', 3.0), ('tfds:shades', 1.0)), classes=('light',)), 0)
  assert light.parts == (Part(3, 1.0),) and [light[i].label for i in range(3)] == [12] * 3


@pytest.mark.parametrize('max_per_class', [None, 2])
def test_labels_of_a_mixture_stay_the_same_where_a_source_has_none_of_the_classes(shades, max_per_class):
  data = DataConfig(mixture=(('digits', 3.0), ('tfds:shades', 1.0)), max_per_class=max_per_class)
  every, some = open_training(data, 0), open_training(dataclasses.replace(data, classes=('light',)), 0)
  assert some.class_names == every.class_names == (*'0123456789', 'dark', 'middle', 'light')
  assert set(some.labels()) == {12} and len(some) == (max_per_class or 3)


@pytest.mark.parametrize(
  ('data', 'said'),
  [
    (DataConfig(classes=('3', '33')), "'33', which is not among the 10 classes of digits; did you mean '3'?"),
    (
      DataConfig(mixture=(('digits', 1.0), ('tfds:shades', 1.0)), classes=('light', 'lihgt')),
      r"has 'lihgt', which is not among the 13 classes of digits \+ tfds:shades; did you mean 'light'?",
    ),
    (
      DataConfig(mixture=(('digits:train[:1]', 1.0), ('digits:train[1:2]', 1.0)), classes=('0', '1')),
      r'digits:train\[:1\] \+ digits:train\[1:2\] has no images of config',
    ),
  ],
)
def test_unknown_class_names_the_nearest(shades, data, said):
  with pytest.raises(UserError, match=said):
    open_training(data, 0)
