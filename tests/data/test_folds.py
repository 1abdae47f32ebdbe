"""Folds of cross-validation: each image is held out once, classes are divided evenly, and folders stay as they are."""

import numpy as np
import pytest

from vit_jax import config as c
from vit_jax.data import folds
from vit_jax.data.config import DataConfig
from vit_jax.data.sources import evaluated, open_source, open_training, was_trained_on
from vit_jax.foundation.errors import UserError


def names(source):
  return [source[number].name for number in range(len(source))]


def photos(root, counts):
  for name, count in counts.items():
    (root / name).mkdir(parents=True)
    for number in range(count):
      (root / name / f'{number}.jpg').write_bytes(b'')
  return f'folder:{root}'


@pytest.mark.parametrize('kind', ['folder', 'digits'])
def test_each_image_is_held_out_once_and_classes_are_divided_evenly(kind, tmp_path):
  spec = photos(tmp_path, {'ant': 11, 'bee': 23, 'cat': 4}) if kind == 'folder' else 'digits'
  everything = open_source(spec, 'all' if kind == 'folder' else 'train', data=DataConfig())
  held, counts = [], []
  for number in range(1, 6):
    data = DataConfig(source=spec, fold=f'{number}/5')
    val, train = open_source(spec, 'val', data=data), open_training(data, 0)
    assert sorted(names(val) + names(train)) == sorted(names(everything))
    assert val.class_names == train.class_names == everything.class_names
    held += names(val)
    counts.append(np.bincount(val.labels(), minlength=len(val.class_names)))
  assert sorted(held) == sorted(names(everything))
  assert np.ptp(counts, axis=0).max() <= 1 and np.ptp(np.sum(counts, axis=1)) <= 1


def test_a_fold_whose_images_were_moved_to_other_folds_is_not_evaluated(tmp_path):
  spec = photos(tmp_path, {'ant': 11, 'bee': 23})
  trained = DataConfig(source=spec, fold='2/5')
  held, images = set(names(open_source(spec, 'val', data=trained))), len(open_training(trained, 0))
  assert evaluated(spec, 'val', DataConfig(), trained, images)[1].fold == '2/5'
  version = open_training(trained, 0).version()
  evaluated(spec, 'val', DataConfig(), trained, images, version)
  (tmp_path / 'bee/0.jpg').rename(tmp_path / 'bee/first.jpg')
  with pytest.raises(
    UserError, match=r'has 27 images .* and had others, or other names of them, when the run'
  ):
    evaluated(spec, 'val', DataConfig(), trained, images, version)
  photos(tmp_path, {'ant/more': 2})
  assert set(names(open_source(spec, 'val', data=trained))) - held  # of which some were trained on
  with pytest.raises(UserError, match=r'has 29 images to train on by config.data.fold 2/5, and had 27 when'):
    evaluated(spec, 'val', DataConfig(), trained, images)


def test_classes_in_another_order_leave_every_image_in_its_fold(tmp_path):
  photos(tmp_path / 'one', {'dog': 5, 'eel': 6})
  spec = photos(tmp_path / 'other', {'ant': 7, 'cat': 6, 'dog': 5})
  for number in range(1, 4):
    mixed = DataConfig(mixture=((f'folder:{tmp_path}/one', 1), (spec, 1)), fold=f'{number}/3')
    alone = DataConfig(source=spec, fold=f'{number}/3')
    for trained, order in ((mixed, None), (alone, ('dog', 'cat', 'ant'))):
      source = open_training(trained, 0, order)
      val = open_source(spec, 'val', data=trained, class_names=source.class_names)
      assert names(val) == names(open_source(spec, 'val', data=alone))
      assert not set(names(val)) & set(names(source))


@pytest.mark.parametrize(
  ('trained', 'split', 'is_known'),
  [
    *(('train', 'val', False), ('train', 'train', True), ('all', 'val', True), ('train', 'all', True)),
    *(('train+val', 'val', True), ('train[:90%]', 'train[90%:]', False), ('train[:90%]', 'train', True)),
    *(('train', 'train[90%:]', True), ('train+val', 'test', False), ('train[:90%]', 'train[:90%]', True)),
    *(
      ('train[:90%]', 'train[80%:]', True),
      ('val+train[10%:20%]', 'train[:15%]', True),
      ('train[:9]', 'train[5:]', True),
    ),
    *(('train[:9]', 'train[9:]', False), ('train[:9]', 'train[50%:]', False)),  # of how many is not known
    *(('train', 'training', True), ('validation', 'val', True)),  # a folder's other words
  ],
)
def test_a_split_that_a_run_was_trained_on_is_known(trained, split, is_known, tmp_path):
  spec = photos(tmp_path / 'photos', {'ant': 2})
  for data in (
    DataConfig(source=spec, split=trained),
    DataConfig(mixture=(('digits', 1.0), (f'{spec}:{trained}', 1.0))),
  ):
    assert was_trained_on(spec, split, data) == is_known
    assert not was_trained_on(photos(tmp_path / f'{len(data.mixture)}', {'ant': 2}), split, data)


def test_a_folder_within_or_around_the_one_that_a_run_was_trained_on_is_known(tmp_path):
  for split in ('train', 'val', 'more'):
    photos(tmp_path / 'all' / split, {'ant': 2})
  whole, (train, val, more) = (
    f'folder:{tmp_path}/all',
    (f'folder:{tmp_path}/all/{n}' for n in ('train', 'val', 'more')),
  )
  of_whole, of_train = DataConfig(source=whole), DataConfig(source=train)
  assert was_trained_on(train, 'all', of_whole) and was_trained_on(train, 'val', of_whole)
  assert not was_trained_on(val, 'all', of_whole) and not was_trained_on(more, 'all', of_whole)
  assert was_trained_on(whole, 'train', of_train) and not was_trained_on(whole, 'val', of_train)


@pytest.mark.parametrize('kind', ['folder', 'digits', 'train and test'])
@pytest.mark.parametrize(
  ('train', 'val'),
  [
    ('train[:90%]', 'val'),
    ('train', 'val[:50%]'),
    ('train[:50%]', 'train[50%:]'),
    ('train[5:]', 'val+train[:5]'),
  ],
)
def test_parts_of_a_fold_are_parts_of_its_train_and_its_val(kind, train, val, tmp_path):
  counts = {'ant': 11, 'bee': 23, 'cat': 4}
  counts = (
    {f'train/{name}': count for name, count in counts.items()} | {'test/ant': 2} if ' ' in kind else counts
  )
  spec = photos(tmp_path, counts) if kind != 'digits' else kind
  data = DataConfig(source=spec, fold='2/5')
  whole = {split: set(names(open_source(spec, split, data=data))) for split in ('train', 'val')}
  parts = [set(names(open_source(spec, split, data=data))) for split in (train, val)]
  assert parts[0] and parts[1] and not parts[0] & parts[1]
  assert parts[0] <= whole['train'] and parts[1] <= (whole['val'] | whole['train'])
  if 'train' not in val:
    assert parts[1] <= whole['val'] and (val != 'val' or parts[1] == whole['val'])
  if kind != 'digits':  # whose splits have one name each
    words = {'train': 'Training', 'val': 'validation'}
    for split, word in words.items():
      assert set(names(open_source(spec, word, data=data))) == whole[split]
  if ' ' in kind:
    assert len(open_source(spec, 'test', data=data)) == 2
    with pytest.raises(
      UserError, match=r"train by config\.data\.fold 2/5 has no split 'test'; it has train, val"
    ):
      open_source(spec, 'train+test', data=data)


def test_a_fold_of_lists_of_classes_divides_the_images():
  labels = np.array([[0, 1], [2, -1], [-1, -1], [1, -1], [0, 2]])
  held = [folds.chosen(labels, 'val', f'{number}/2') for number in (1, 2)]
  assert held[0].tolist() == [True, False, True, False, True] and (held[0] ^ held[1]).all()
  assert (folds.chosen(labels, 'train', '1/2') == held[1]).all()


def test_folds_that_make_no_sense_are_refused(tmp_path):
  for fold in ('0/5', '6/5', '1/1', '2', 'a/b'):
    with pytest.raises(
      UserError, match=r"config\.data\.fold is .*; it must be one of two folds or more, .* '2/5'"
    ):
      c.from_config_dict(c.as_json(c.Config(data=DataConfig(fold=fold))))
  own = photos(tmp_path / 'own', {'train/ant': 2, 'val/ant': 2})
  with pytest.raises(
    UserError, match=r"stands beside a split 'val', which config\.data\.fold 1/2 would replace"
  ):
    open_source(own, 'val', data=DataConfig(fold='1/2'))
  few = photos(tmp_path / 'few', {'ant': 2, 'bee': 1})
  with pytest.raises(UserError, match=r"has 3 images, none of which is in 'val' of config\.data\.fold 4/4"):
    open_source(few, 'val', data=DataConfig(fold='4/4'))
