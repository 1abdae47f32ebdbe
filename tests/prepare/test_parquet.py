"""Parquet files with images, as Hugging Face and img2dataset write them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hub_emulator import running
from made_samples import parquet, picture
from made_sources import folder_of
from prepared_sets import files, prepared

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import __main__ as command
from vit_jax.prepare import parquet as parquet_module
from vit_jax.prepare.selection import Selection
from vit_jax.prepare.tables import Columns

pytestmark = pytest.mark.usefixtures('in_this_process')

FEATURES = {
  'image': {'_type': 'Image'},
  'label': {'_type': 'ClassLabel', 'names': ['tench', 'crane', 'crane']},
}


def structs(first, count):
  return [{'bytes': picture(first + k), 'path': f'{k}.JPEG'} for k in range(count)]


@pytest.fixture
def source(tmp_path):
  """Hugging Face's layout: three files of three splits, images in structs, the names of the classes."""
  for split, first, labels in (('train', 0, [2, 0, 2]), ('validation', 10, [1]), ('test', 20, [0, 1])):
    parquet(
      tmp_path / f'hub/data/{split}-00000-of-00001.parquet',
      {'image': structs(first, len(labels)), 'label': labels},
      FEATURES,
      row_group_size=2,
    )
  (tmp_path / 'hub/README.md').write_text('x')
  return tmp_path / 'hub'


def records(destination, split='train', **options):
  source = open_source(f'tfds:{destination}', split, data=DataConfig(**options))
  return {source[k].image: source[k].label for k in range(len(source))}, source.class_names


def test_labels_and_names_are_those_of_hugging_face(source, tmp_path):
  prepared(source, tmp_path / 'set')
  train, names = records(tmp_path / 'set')
  assert train == {picture(0): 2, picture(1): 0, picture(2): 2}
  assert names == ('tench', 'crane', 'crane (2)')
  assert records(tmp_path / 'set', 'val')[0] == {picture(10): 1}
  assert records(tmp_path / 'set', 'test')[0] == {picture(20): 0, picture(21): 1}
  assert not (tmp_path / 'set/.unfinished').exists()  # the copies of the images


@pytest.mark.parametrize('name', ['hf:me/pets', 'hf:me/pets@refs/convert/parquet:data', 'hf://me/pets@v1'])
def test_a_data_set_of_the_hub_is_read_as_the_folder_it_is(name, source, tmp_path):
  with running(tmp_path / 'cache') as hub:
    repository = hub.add('datasets/me/pets', source)
    repository.branches |= dict.fromkeys(('v1', 'refs/convert/parquet'), repository.branches['main'])
    prepared(command._absolute(name), tmp_path / 'set')
    with pytest.raises(UserError, match='There is no repository me/others on the Hub, or it is priv'):
      command._absolute('hf:me/others')
  prepared(source, tmp_path / 'local')
  for split in ('train', 'val', 'test'):
    assert records(tmp_path / 'set', split) == records(tmp_path / 'local', split)
  assert 'hf://datasets/me/pets' in (tmp_path / 'set/metadata.json').read_text()


def test_img2dataset_columns_of_bytes_and_lists_are_read(tmp_path):
  path = parquet(tmp_path / 'x.parquet', {'jpg': [picture(0), picture(1)], 'labels': [[4, 1], []]})
  prepared(path, tmp_path / 'set')
  labels, names = records(tmp_path / 'set', max_labels=2)
  assert {image: list(label) for image, label in labels.items()} == {picture(0): [1, 4], picture(1): []}
  assert len(names) == 5


def test_columns_are_chosen_by_flags(listed, tmp_path):
  path = parquet(tmp_path / 'x.parquet', {'photo': [picture(0)], 'label': [1], 'breed': ['pug']})
  assert set(listed(path, columns=Columns('photo', 'breed')).values()) == {('train', 'pug')}


def test_limit_takes_the_first_rows_of_each_file(listed, source):
  found = listed(source, selection=Selection(limit=1))
  names = ('test', 'train', 'validation')
  assert sorted(found) == [f'data/{split}-00000-of-00001/0000000-0.JPEG' for split in names]


def test_killed_copying_goes_on_with_the_next_file(source, tmp_path, monkeypatch):
  prepared(source, tmp_path / 'undisturbed/set')
  unpack, done = parquet_module._unpack, []

  def stop_at_the_second(name, *arguments):
    if done:
      raise KeyboardInterrupt
    unpack(name, *arguments)
    done.append(name)

  with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
    patches.setattr(parquet_module, '_unpack', stop_at_the_second)
    prepared(source, tmp_path / 'set')
  again = []
  monkeypatch.setattr(parquet_module, '_unpack', lambda *args: (again.append(args[0]), unpack(*args)))
  prepared(source, tmp_path / 'set')
  assert len(again) == 2 and done[0] not in again
  assert files(tmp_path / 'set') == files(tmp_path / 'undisturbed/set')


def test_a_file_that_came_after_a_stop_is_read_and_no_other_twice(source, tmp_path, monkeypatch):
  prepared(source, tmp_path / 'undisturbed/set')
  late, unpack = source / 'data/test-00000-of-00001.parquet', parquet_module._unpack
  late.rename(tmp_path / 'late')

  def stop_at_the_last(name, *arguments):
    if 'validation' in name:
      raise KeyboardInterrupt
    unpack(name, *arguments)

  with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
    patches.setattr(parquet_module, '_unpack', stop_at_the_last)
    prepared(source, tmp_path / 'set')
  (tmp_path / 'late').rename(late)  # the first in the listing
  prepared(source, tmp_path / 'set')
  assert files(tmp_path / 'set') == files(tmp_path / 'undisturbed/set')


@pytest.mark.parametrize(
  'columns,message',
  [
    ({'url': ['http://x'], 'labels': [[1]]}, 'has addresses of images and no images; .*img2dataset'),
    ({'photo': [b'x'], 'label': [1]}, "has no column 'image' or .*, but photo, label; .*--image_column"),
    ({'image': [b'x'], 'kind': [1]}, "has no column 'label' or .*, but image, kind; .*--label_column"),
    ({'image': ['a.jpg'], 'label': [1]}, "no images in its column 'image', which is of type string"),
    (
      {'image': [b'x'], 'labels': [[1, 2]], 'weights': [[0.5]]},
      r'row 0 has the labels .* and the weights \(0.5,\)',
    ),
    ({'image': [{'bytes': None, 'path': 'a.jpg'}], 'label': [1]}, 'row 0 has the path a.jpg and no bytes'),
  ],
)
def test_unusable_columns_are_refused_by_name(listed, tmp_path, columns, message):
  if isinstance(columns.get('image', [0])[0], dict):
    kind = pa.struct([('bytes', pa.binary()), ('path', pa.string())])
    columns = columns | {'image': pa.array(columns['image'], kind)}
  path = parquet(tmp_path / 'x.parquet', columns)
  with pytest.raises(UserError, match=message):
    listed(path)


def test_files_whose_numbers_mean_other_classes_are_refused(listed, source):
  """As the files of two configurations of a repository, or of one whose splits were written apart."""
  names = FEATURES['label'] | {'names': ['crane', 'tench', 'crane']}
  parquet(source / 'data/z.parquet', {'image': structs(30, 1), 'label': [0]}, FEATURES | {'label': names})
  with pytest.raises(
    UserError, match=r'z.parquet has other classes than .*test-00000.*, or in another order'
  ):
    listed(source)


def test_column_that_is_there_twice_is_refused(listed, tmp_path):
  arrays = [pa.array([picture(0)]), pa.array(['cat']), pa.array(['dog'])]
  columns = pa.Table.from_arrays(arrays, ['image', 'label', 'label'])
  pyarrow.parquet.write_table(columns, tmp_path / 'x.parquet')
  with pytest.raises(UserError, match=r"x.parquet has the column 'label' twice; rename"):
    listed(tmp_path / 'x.parquet')


def test_damaged_files_and_other_data_are_refused(listed, source, tmp_path):
  (tmp_path / 'x.parquet').write_bytes(b'PAR1' + b'\0' * 100)
  with pytest.raises(UserError, match=r'x.parquet cannot be read as parquet'):
    listed(tmp_path / 'x.parquet')
  folder_of(source, 'z/1.jpg')
  with pytest.raises(UserError, match=r'holds z/1.jpg beside .parquet files'):
    listed(source)


def test_row_without_an_image_is_a_bad_image(tmp_path):
  path = parquet(tmp_path / 'x.parquet', {'image': [picture(0), None], 'label': [0, 1]})
  with pytest.raises(UserError, match=r'1 of 2 images \w+ bad\S* .*x/0000001'):
    prepared(path, tmp_path / 'set')
  assert prepared(path, tmp_path / 'set', skip_bad=True).bad == 1


def test_labels_are_kept_in_their_order_with_their_weights(tmp_path):
  """COYO-Labeled-300M's columns: classes by probability, most probable first."""
  labels, weights = [[7, 2, 5], [3], []], [[0.75, 0.5, 0.1], [1.0], []]
  columns = {'jpg': [picture(k) for k in range(3)], 'labels': labels, 'label_probs': weights}
  result = prepared(parquet(tmp_path / 'x.parquet', columns), tmp_path / 'set')
  assert result.weighted and result.multi_label
  source = open_source(f'tfds:{tmp_path / "set"}', 'train', data=DataConfig(max_labels=3, label_weights=True))
  found = {source[k].image: source[k] for k in range(3)}
  for k in range(3):
    record = found[picture(k)]
    assert record.label.tolist() == labels[k]  # in the order of the source
    np.testing.assert_array_equal(record.weights, np.array(weights[k], np.float32))
