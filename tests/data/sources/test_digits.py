import numpy as np
import pytest
from sklearn import datasets

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source
from vit_jax.foundation.errors import UserError


def opened(spec, split='train', **options):
  return open_source(spec, split, data=DataConfig(), **options)


def test_splits_are_a_stratified_division_of_all_digits():
  train, test = opened('digits'), opened('digits', 'test')
  assert (len(train), len(test)) == (1437, 360)
  assert train.class_names == test.class_names == tuple('0123456789')
  images, labels = datasets.load_digits(return_X_y=True)

  def as_multiset(source):
    return [(record.image.tobytes(), record.label) for record in (source[i] for i in range(len(source)))]

  images = np.rint(images * 255 / 16).astype(np.uint8)
  every = [(image.tobytes(), label) for image, label in zip(images, labels)]
  assert sorted(as_multiset(train) + as_multiset(test)) == sorted(every)
  assert train[0].image.shape == (8, 8) and max(train[i].image.max() for i in range(100)) == 255
  per_class = np.bincount([test[i].label for i in range(360)])
  np.testing.assert_allclose(per_class, np.bincount(labels) / 5, atol=1)
  assert as_multiset(opened('digits', 'test')) == as_multiset(test)
  assert test[7].name == 'digits/test record 7'


@pytest.mark.parametrize(
  'split,first,last',
  [('train[:90%]', 0, 1293), ('train[90%:]', 1293, 1437), ('train[-5:]', 1432, 1437)],
)
def test_slices_are_ranges_of_records(split, first, last):
  whole, part = opened('digits'), opened('digits', split)
  assert len(part) == last - first
  assert all((part[i].image == whole[first + i].image).all() for i in range(len(part)))
  assert len(opened('digits:train[:1]+test')) == 361 and len(opened('digits:all')) == 1797


@pytest.mark.parametrize(
  'split,message',
  [
    ('val', "digits has no split 'val'; it has test, train"),
    ('train[:9999]', r'incompatible with 1437 examples; write it like'),
    ('train[5:5]', 'has no records'),
    ('train[', 'digits has no split|cannot be read'),
  ],
)
def test_wrong_split_says_what_is_wrong(split, message):
  with pytest.raises(UserError, match=message):
    opened('digits', split)


def test_classes_of_a_checkpoint_are_matched_by_name():
  names = ('none', *reversed('0123456789'))
  plain, mapped = opened('digits'), opened('digits', class_names=names)
  assert mapped.class_names == names
  assert all(names[mapped[i].label] == str(plain[i].label) for i in range(50))
  with pytest.raises(UserError, match="digits has 1 classes that the model does not know, such as '9'"):
    opened('digits', class_names=tuple('012345678'))
