import errno
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python import array_record_module
from etils import epath
from fake_data import Lists
from processes import run
from tensorflow_datasets.core import file_adapters

from vit_jax.data.config import DataConfig
from vit_jax.data.decode import Picture
from vit_jax.data.sources import open_source, tfds_features
from vit_jax.foundation.errors import UserError

DATA = DataConfig()


def opened(spec, split='train', **options):
  return open_source(spec, split, data=DATA, **options)


@pytest.fixture
def shades(shades_dir, monkeypatch):
  """The directory of a prepared data set, which is also found by name."""
  monkeypatch.setenv('TFDS_DATA_DIR', str(shades_dir))
  return shades_dir / 'shades/1.2.0'


@pytest.mark.parametrize('spec', ['tfds:shades', 'tfds:shades:1.2.0', 'tfds:{}'])
def test_records_have_the_encoded_image_and_the_class(shades, spec):
  source = opened(spec.format(shades))
  assert len(source) == 10 and source.class_names == ('dark', 'middle', 'light')
  assert source[3].name == 'shades/1.2.0/train record 3'
  values = []
  for i in range(10):
    record = source[i]
    assert isinstance(record.image, bytes)
    pixels = Picture(record.image, 3, record.name).pixels()
    assert pixels.shape == (6, 6, 3) and record.label == pixels[0, 0, 0] % 3
    values.append(pixels[0, 0, 0])
  assert sorted(values) == list(range(10))
  assert len(opened(f'{spec.format(shades)}:test')) == 4
  assert len(opened(f'{spec.format(shades)}:train[:50%]', 'test')) == 5
  assert opened(spec.format(shades), class_names=('light', 'middle', 'dark'))[0].label == 2 - source[0].label


def test_images_of_floats_which_tfds_keeps_as_four_channels_are_refused():
  image = tfds.features.Image(shape=(8, 8, 1), dtype=np.float32)
  with pytest.raises(UserError, match=r'^The images of depths are of float32'):
    tfds_features.image_feature(tfds.features.FeaturesDict({'image': image}), 'depths')


def test_slices_of_parquet_of_which_tfds_reads_whole_files_are_refused(shades, tmp_path):
  """The same records, as TFDS's own adapter writes them."""
  for file in shades.iterdir():
    if 'array_record' in file.name:
      reader = array_record_module.ArrayRecordReader(str(file))
      other = tmp_path / file.name.replace('.array_record', '.parquet')
      file_adapters.ParquetFileAdapter.write_examples(other, enumerate(reader.read_all()))
      reader.close()
    else:
      (tmp_path / file.name).write_text(file.read_text().replace('array_record', 'parquet'))
  assert len(opened(f'tfds:{tmp_path}')) == 10
  with pytest.raises(
    UserError, match=r"'train\[:50%\]' .* has 5 records, and TFDS reads 10: .*tfds convert_format"
  ):
    opened(f'tfds:{tmp_path}:train[:50%]')


@pytest.mark.parametrize(
  'spec,message',
  [
    ('tfds:shapes', r'no tfds:shapes in .*\(TFDS_DATA_DIR says where\); did you mean tfds:shades'),
    ('tfds:shades:val', r"shades/1.2.0 has no split 'val'; it has test, train"),
    ('tfds:shades:train[:99]', r'incompatible with 10 examples'),
    ('tfds:mnist', 'no tfds:mnist in .*TFDS_DATA_DIR .* tfds build mnist --file_format='),
    ('tfds:a b', 'tfds:a b cannot be opened'),
    ('tfds:/no/such/directory', 'is no directory prepared by TFDS'),
  ],
)
def test_wrong_name_or_split_says_what_there_is(shades, spec, message):
  with pytest.raises(UserError, match=message) as caught:
    opened(spec)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize('name', ['imagenet21k', 'imagenet2012'])
def test_missing_data_of_a_recipe_says_how_to_get_and_prepare_it(tmp_path, monkeypatch, caplog, name):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'none'))
  with pytest.raises(UserError) as error:
    opened(f'tfds:{name}')
  assert not caplog.records  # TFDS would warn of a folder of its own making
  text = str(error.value)
  assert text.startswith(f'There is no tfds:{name} in {tmp_path}/none') and '\n' not in text
  assert f'vit_jax prepare {name} ' in text
  assert '--config.data.source=folder:/path:train --config.evaluators.val.split=val' in text
  assert ('recipe :imagenet2012' in text) == (name == 'imagenet21k')


def test_directory_without_version_names_the_one_with_it(shades):
  with pytest.raises(UserError, match=rf'did you mean tfds:{shades}\?'):
    opened(f'tfds:{shades.parent}')


def test_folder_whose_name_is_no_data_sets_is_read_behind_a_dot(shades, monkeypatch):
  monkeypatch.chdir(shades.parent.parent)
  with pytest.raises(UserError, match=r'write tfds:\./shades/1\.2\.0\.$'):
    opened('tfds:shades/1.2.0')
  assert len(opened('tfds:./shades/1.2.0')) == 10


def test_tfrecord_names_the_command_that_converts_it(shades, tmp_path):
  folder = tmp_path / 'shades/1.2.0'
  shutil.copytree(shades, folder)
  info = json.loads((folder / 'dataset_info.json').read_text())
  info['fileFormat'] = 'tfrecord'
  (folder / 'dataset_info.json').write_text(json.dumps(info))
  command = f'tfds convert_format --dataset_version_dir={folder} --out_file_format=array_record'
  with pytest.raises(UserError, match=f'is prepared as tfrecord, .*{command}'):
    opened(f'tfds:{folder}')


def test_damaged_shard_is_named(shades, tmp_path):
  shutil.copytree(shades, tmp_path / '1.2.0')
  source = opened(f'tfds:{tmp_path}/1.2.0')
  (file,) = (tmp_path / '1.2.0').glob('*train*')
  content = file.read_bytes()
  for damaged in (content[: len(content) // 2], b'', None):
    file.unlink()
    if damaged is not None:
      file.write_bytes(damaged)
    source = opened(f'tfds:{tmp_path}/1.2.0')
    with pytest.raises(UserError, match=rf'train record 3 cannot be read \(.*\); restore {file}'):
      source[3]


@pytest.mark.slow
def test_limit_of_open_files_is_raised_or_named(shades, tmp_path):
  count, folder = 300, tmp_path / '1.2.0'
  folder.mkdir()
  shutil.copy(shades / 'features.json', folder)
  shutil.copy(shades / 'colour.labels.txt', folder)
  info = json.loads((shades / 'dataset_info.json').read_text())
  info['splits'] = [split for split in info['splits'] if split['name'] == 'train']
  info['splits'][0]['shardLengths'] = ['10'] * count
  (folder / 'dataset_info.json').write_text(json.dumps(info))
  (file,) = shades.glob('*train*')
  for number in range(count):
    os.link(file, folder / f'shades-train.array_record-{number:05}-of-{count:05}')
  script = """
    import resource, sys
    from vit_jax.data.config import DataConfig
    from vit_jax.data import sources
    from vit_jax.foundation.errors import UserError

    resource.setrlimit(resource.RLIMIT_NOFILE, (200, int(sys.argv[2])))
    try:
      source = sources.open_source(f'tfds:{sys.argv[1]}', 'train', data=DataConfig())
      print(sum(source[i].label >= 0 for i in range(0, len(source), 10)), 'read')
    except UserError as error:
      print(error)
    """
  assert '300 read' in run(script, arguments=(folder, 4000))[0]
  said = run(script, arguments=(folder, 400))[0]
  assert 'has 300 files, and a process here may open 400; raise that (ulimit -Hn) to 812' in said


def test_lists_of_classes_are_read_where_max_labels_allows_them(shades):
  data = DataConfig(max_labels=4)
  source = open_source('tfds:lists', 'train', data=data)
  assert source.class_names == Lists.CLASSES
  seen = set()
  for record in (source[i] for i in range(16)):
    pixels = Picture(record.image, 3, record.name).pixels()[:, :, 0].ravel()
    assert record.label.tolist() == np.flatnonzero(pixels).tolist()
    seen.add(tuple(record.label))
  assert len(seen) == 16
  names = Lists.CLASSES[::-1]
  mapped = open_source('tfds:lists', 'train', data=data, class_names=names)
  assert all((3 - source[i].label == mapped[i].label).all() for i in range(16))
  assert open_source('tfds:shades', 'train', data=data)[0].label in (0, 1, 2)  # single classes are fine too
  with pytest.raises(UserError, match=r'lists/1.0.0 has lists of classes \(labels\); set config.data.max_l'):
    open_source('tfds:lists', 'train', data=DataConfig())


def test_data_directory_that_cannot_be_read_names_the_variable(monkeypatch):
  def stale(self, pattern):
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

  monkeypatch.setenv('TFDS_DATA_DIR', '/mnt/disk')
  monkeypatch.setattr(type(epath.Path('/')), 'glob', stale)
  with pytest.raises(UserError, match=r'/mnt/disk cannot be read \(Stale file handle\); set TFDS_DATA_DIR'):
    opened('tfds:shades')


def test_file_name_that_is_not_utf8_is_readable():
  reader = tfds_features.RecordReader('label', ('a',), int, False, 'image', 1, 'file_name')
  assert reader.file_name({'file_name': b'caf\xe9.jpg'}) == 'caf\\xe9.jpg'
  assert reader.file_name({'file_name': 'café.jpg'.encode()}) == 'café.jpg'
