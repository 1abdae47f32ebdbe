"""Classes of samples: what they are called."""

import itertools

import pytest

from vit_jax.prepare import sample_labels


def named(*names):
  """What a data set with a name for each number calls its classes."""
  return sample_labels.ordered_classes(map(str, range(len(names))), names)[1]


@pytest.mark.parametrize(
  ('path', 'split'),
  [
    ('data/imagenet12k-validation-0003.tar', 'val'),
    ('train_full/test-00000-of-00001.parquet', 'test'),
    ('train_full/0000.parquet', 'train'),
    ('test/train/0.tar', 'train'),
    ('photos/0.tar', 'train'),
  ],
)
def test_split_of_a_file_is_what_its_own_name_says_before_its_folders(path, split):
  assert sample_labels.split_of(path) == split


@pytest.mark.parametrize('count', range(1, 6))
def test_classes_have_different_names_whatever_the_given_ones_look_like(count):
  """All lists of names that look like those that are made; a name is kept where it is first or only."""
  for names in itertools.product(('a', 'a (1)', 'a (2)', 'a (1) (2)', 'b'), repeat=count):
    made = named(*names)
    assert len(set(made)) == count, (names, made)
    firsts = {names.index(name) for name in names}
    assert all(made[number] == names[number] for number in firsts)


def test_second_of_two_equal_names_has_its_number_behind():
  assert named('tench', 'crane', 'crane') == ['tench', 'crane', 'crane (2)']
  assert named('a', 'a', 'a (1)') == ['a', 'a (1) (1)', 'a (1)']
