"""Shards of WebDataset: which sample has which label."""

import pytest
from made_samples import picture, shard
from made_sources import folder_of
from prepared_sets import prepared

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source
from vit_jax.foundation.errors import UserError
from vit_jax.prepare.selection import Selection
from vit_jax.prepare.tables import Columns

pytestmark = pytest.mark.usefixtures('in_this_process')


def samples(first, labels):
  """A sample for each label, in the layout of timm's shards: .cls, .jpg and .json."""
  return [
    {'cls': str(label), 'jpg': picture(first + k), 'json': {'label': label, 'class_name': 'x'}}
    for k, label in enumerate(labels)
  ]


def records(destination, split='train'):
  """{encoded image: label}, and the names of the classes, as training reads them."""
  source = open_source(f'tfds:{destination}', split, data=DataConfig())
  return {source[k].image: source[k].label for k in range(len(source))}, source.class_names


def test_every_record_has_the_label_of_its_cls_file(tmp_path):
  """Also where a number of a class has no image: numbers are never closed up."""
  shard(tmp_path / 'x/imagenet22k-train-0000.tar', *samples(0, [3, 0, 6]))
  shard(tmp_path / 'x/imagenet22k-train-0001.tar', *samples(10, [6, 1]))
  shard(tmp_path / 'x/imagenet22k-validation-0000.tar', *samples(20, [0, 6]))
  (tmp_path / 'x/_info.json').write_text('{}')
  prepared(tmp_path / 'x', tmp_path / 'set')
  train, names = records(tmp_path / 'set')
  assert train == {picture(0): 3, picture(1): 0, picture(2): 6, picture(10): 6, picture(11): 1}
  assert records(tmp_path / 'set', 'val')[0] == {picture(20): 0, picture(21): 6}
  assert names == ('0', '1', '2', '3', '4', '5', '6')


def test_class_names_come_from_a_file(tmp_path):
  shard(tmp_path / 'x.tar', *samples(0, [2, 0]))
  names = ('cat', 'crane', 'crane', 'dog')
  prepared(tmp_path / 'x.tar', tmp_path / 'set', selection=Selection(class_names=names))
  labels, found = records(tmp_path / 'set')
  assert labels == {picture(0): 2, picture(1): 0}
  assert found == ('cat', 'crane', 'crane (2)', 'dog')
  with pytest.raises(UserError, match='class number 2, and there are 2 class names'):
    prepared(tmp_path / 'x.tar', tmp_path / 'set2', selection=Selection(class_names=names[:2]))


def test_names_in_cls_files_are_classes_sorted_by_name(tmp_path):
  shard(tmp_path / 'x.tar', {'cls': 'dog\n', 'jpg': picture(0)}, {'cls': 'cat', 'jpg': picture(1)})
  prepared(tmp_path / 'x.tar', tmp_path / 'set')
  assert records(tmp_path / 'set') == ({picture(0): 1, picture(1): 0}, ('cat', 'dog'))


def test_json_has_the_label_where_there_is_no_cls(listed, tmp_path):
  path = shard(
    tmp_path / 'x/0.tar',
    {'jpg': picture(0), 'json': {'label': 4, 'other': 'b'}},
    {'jpg': picture(1), 'json': {'label': 5, 'other': 'a'}},
  )
  assert set(listed(path).values()) == {('train', '4'), ('train', '5')}
  assert set(listed(path, columns=Columns(label='other')).values()) == {('train', 'a'), ('train', 'b')}


def test_limit_takes_the_first_samples_of_each_shard(listed, tmp_path):
  for number in range(2):
    shard(tmp_path / f'x/{number}.tar', *samples(0, range(5)))
  found = list(listed(tmp_path / 'x', selection=Selection(limit=2)))
  assert found == [f'{number}/00000{k}.jpg' for number in (0, 1) for k in (0, 1)]


def test_chosen_classes_leave_the_others_out(tmp_path):
  shard(tmp_path / 'x.tar', *samples(0, [2, 0, 1]))
  prepared(tmp_path / 'x.tar', tmp_path / 'set', selection=Selection(classes=frozenset({'2', '0'})))
  assert records(tmp_path / 'set')[0] == {picture(0): 2, picture(1): 0}


@pytest.mark.parametrize(
  'second,message',
  [
    ({'jpg': picture(1)}, r'000001.jpg has no label, neither a .cls nor a .json'),
    ({'jpg': picture(1), 'json': {'x': 1}}, "has no column 'label' or .*, but x;.*--label_column"),
    ({'jpg': picture(1), 'json': 'no json'}, '000001.json is not JSON'),
    ({'jpg': picture(1), 'cls': '-1'}, "000001.jpg has the label '-1'"),
    ({'jpg': picture(1), 'cls': '12345678901'}, 'The label 12345678901 is too large'),
    ({'jpg': picture(1), 'png': picture(1), 'cls': '1'}, '000001.jpg is of a sample of 2 images'),
    ({'cls': '1', 'txt': 'x'}, '000001.cls is of a sample of 0 images'),
    ({'jpg': picture(1), 'json': {'labels': [1, 1], 'weights': [0.5, 0.5]}}, 'give each label once'),
    (
      {'jpg': picture(1), 'json': {'labels': [1, 2], 'weights': [0.5]}},
      r'has the labels .* and the weights \(0.5,\)',
    ),
    ({'jpg': picture(1), 'json': {'labels': [1], 'weights': [1.5]}}, r'and the weights \(1.5,\)'),
  ],
)
def test_unusable_samples_are_refused_by_name(tmp_path, second, message):
  path = shard(tmp_path / 'x/0.tar', {'jpg': picture(0), 'cls': '0'}, second)
  with pytest.raises(UserError, match=message):
    prepared(path, tmp_path / 'set')


def test_other_data_beside_the_shards_is_refused(listed, tmp_path):
  shard(tmp_path / 'x/0.tar', *samples(0, [1]))
  folder_of(tmp_path / 'x', 'z/1.jpg')
  with pytest.raises(UserError, match=r'holds z/1.jpg beside .tar files'):
    listed(tmp_path / 'x')


def test_empty_labels_are_no_to_all_classes(tmp_path):
  shard(
    tmp_path / 'x.tar',
    {'jpg': picture(0), 'json': {'labels': [2, 1]}},
    {'jpg': picture(1), 'json': {'labels': []}},
  )
  prepared(tmp_path / 'x.tar', tmp_path / 'set')
  source = open_source(f'tfds:{tmp_path / "set"}', 'train', data=DataConfig(max_labels=2))
  labels = {source[k].image: list(source[k].label) for k in range(2)}
  assert labels == {picture(0): [1, 2], picture(1): []}
