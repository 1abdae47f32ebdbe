"""Records chosen by class, against counting them one by one."""

import collections
import os
import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from vit_jax import config
from vit_jax.data.sources import open_source, open_training, subset, tfds
from vit_jax.errors import UserError


class Labelled:
  """Record i is i."""

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
def test_of_classes(labels, names):
  source = Labelled(labels)
  numbers = {'abcdef'.index(name) for name in names - {'x'}}
  expected = [i for i, own in enumerate(labels) if numbers & set(np.ravel(own).tolist())]
  result = subset.of_classes(source, tuple(names))
  assert chosen(result) == expected and result.class_names == source.class_names
  np.testing.assert_array_equal(result.labels(), source.labels()[expected])


@hypothesis.given(labels=LISTS | SINGLE, count=st.integers(1, 8), seed=st.integers(0, 2**32 - 1))
def test_at_most(labels, count, seed):
  kept = chosen(subset.at_most(Labelled(labels), count, seed))
  assert kept == sorted(kept)
  own = [set(np.ravel(label).tolist()) - {-1} for label in labels]
  there, left = (collections.Counter(k for i in some for k in own[i]) for some in (range(len(labels)), kept))
  assert all(number <= count for number in left.values())
  if np.ndim(labels) == 1:
    assert all(left[k] == min(there[k], count) for k in there)
  # Without a class, or with classes that are all rare: nothing is in the way.
  assert all(i in kept for i in range(len(labels)) if all(there[k] <= count for k in own[i]))


def test_the_seed_chooses():
  source = Labelled(np.repeat(np.arange(6), 50))
  first, again, other = (chosen(subset.at_most(source, 5, seed)) for seed in (0, 0, 1))
  assert first == again != other and len(first) == len(other) == 30
  # Not the first ones of each class.
  assert np.mean([i % 50 for i in first]) > 10


@pytest.fixture
def scans(shades_dir, tmp_path, monkeypatch):
  """How often the labels of a prepared data set were read."""
  monkeypatch.setenv('TFDS_DATA_DIR', str(shades_dir))
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(tfds, '_SCANNED_TOGETHER', 3)
  calls = []
  read = tfds.PreparedSource._all_numbers
  monkeypatch.setattr(tfds.PreparedSource, '_all_numbers', lambda self: calls.append(self) or read(self))
  return calls


@pytest.mark.parametrize(
  ('spec', 'data'),
  [
    ('tfds:shades', config.DataConfig()),
    ('tfds:lists', config.DataConfig(max_labels=4)),
    ('digits', config.DataConfig()),
  ],
)
def test_labels_are_those_of_the_records(scans, spec, data):
  source = open_source(spec, 'train', data=data)
  for row, i in zip(source.labels(), range(len(source)), strict=True):
    assert row[row >= 0].tolist() == np.ravel(source[i].label).tolist()
  names = source.class_names[::-1]
  reverse = open_source(spec, 'train', data=data, class_names=names).labels()
  labels = source.labels()
  np.testing.assert_array_equal(reverse, np.where(labels < 0, -1, len(names) - 1 - labels))
  assert len(scans) == spec.startswith('tfds')


def test_labels_are_read_again_where_a_file_changed(scans, shades_dir, tmp_path, monkeypatch):
  folder = tmp_path / 'shades/1.2.0'
  shutil.copytree(shades_dir / 'shades/1.2.0', folder)
  read = lambda split: open_source(f'tfds:{folder}', split, data=config.DataConfig()).labels().tolist()
  whole = read('train')
  assert read('train') == whole and len(scans) == 1
  assert read('train[3:7]') == whole[3:7] and len(read('test')) == 4 and len(scans) == 3
  (file,) = folder.glob('*train*')
  os.utime(file, (0, 0))
  assert read('train') == whole and len(scans) == 4


def test_options(scans):
  data = config.DataConfig(source='tfds:shades', classes=('light', 'dark'))
  source = open_training(data, 0)
  assert source.class_names == ('dark', 'middle', 'light')
  assert sorted(source.labels()) == [0, 0, 0, 0, 2, 2, 2]
  assert {source[i].label for i in range(7)} == {0, 2} and source[0].name.startswith('shades/1.2.0/train rec')
  test = open_source('tfds:shades', 'test', data=data, class_names=source.class_names)
  assert 1 not in test.labels() and 0 < len(test) < 4
  mixture = (('tfds:shades', 1.0), ('digits', 1.0))
  some = open_training(config.DataConfig(mixture=mixture, classes=('light', '3'), max_per_class=2), 0)
  assert some.sizes == (2, 2) and {some[i].label for i in range(4)} == {2, 6}


@pytest.mark.parametrize(
  ('data', 'said'),
  [
    (
      config.DataConfig(classes=('3', '33')),
      "has '33', which is not among the 10 classes of digits; did you mean '3'?",
    ),
    (
      config.DataConfig(classes=('x',)),
      "has 'x', which is not among the 10 classes of digits; did you mean '0'?",
    ),
    (
      config.DataConfig(source='digits:train[:1]', classes=('0', '1')),
      r'digits:train\[:1\] has no images of config',
    ),
  ],
)
def test_wrong_classes(data, said):
  with pytest.raises(UserError, match=said):
    open_training(data, 0)
