import json
import os
import shutil

import numpy as np
import pytest
from processes import run
from sklearn import datasets

from vit_jax import config
from vit_jax.data.decode import Picture
from vit_jax.data.sources import open_source, open_training, parse
from vit_jax.errors import UserError

DATA = config.DataConfig()


def opened(spec, split='train', **options):
  return open_source(spec, split, data=DATA, **options)


@pytest.fixture
def shades(shades_dir, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(shades_dir))
  return shades_dir / 'shades/1.2.0'


@pytest.mark.parametrize(
  'spec,expected',
  [
    ('digits', ('digits', '', 'S')),
    ('digits:test', ('digits', '', 'test')),
    ('digits:train[:90%]', ('digits', '', 'train[:90%]')),
    ('tfds:cifar10', ('tfds', 'cifar10', 'S')),
    ('tfds:cifar10:train[:98%]', ('tfds', 'cifar10', 'train[:98%]')),
    ('tfds:cifar10:train[10:20]+test', ('tfds', 'cifar10', 'train[10:20]+test')),
    ('tfds:a/b:1.0.0', ('tfds', 'a/b:1.0.0', 'S')),
    ('tfds:a/b:1.0.0:test', ('tfds', 'a/b:1.0.0', 'test')),
    ('tfds:/d/a/1.0.0:validation', ('tfds', '/d/a/1.0.0', 'validation')),
    ('tfds:gs://bucket/a/1.0.0', ('tfds', 'gs://bucket/a/1.0.0', 'S')),
    ('folder:/my:pictures/of', ('folder', '/my:pictures/of', 'S')),
    ('folder:/my/pictures:val', ('folder', '/my/pictures', 'val')),
  ],
)
def test_grammar(spec, expected):
  assert parse(spec, 'S') == expected


def test_an_existing_directory_is_not_a_split(tmp_path):
  (tmp_path / 'a:b').mkdir()
  assert parse(f'folder:{tmp_path}/a:b', 'train') == ('folder', f'{tmp_path}/a:b', 'train')


@pytest.mark.parametrize('spec', ['imagenet', 'tfds:', 'folder:', '', 'http://x/y'])
def test_no_source(spec):
  with pytest.raises(UserError, match='is not a source; write'):
    opened(spec)


def test_digits():
  train, test = opened('digits'), opened('digits', 'test')
  assert (len(train), len(test)) == (1437, 360)
  assert train.class_names == test.class_names == tuple('0123456789')
  images, labels = datasets.load_digits(return_X_y=True)

  def as_multiset(source):
    return [(record.image.tobytes(), record.label) for record in (source[i] for i in range(len(source)))]

  every = [
    (np.rint(image * 255 / 16).astype(np.uint8).tobytes(), label) for image, label in zip(images, labels)
  ]
  assert sorted(as_multiset(train) + as_multiset(test)) == sorted(every)
  assert train[0].image.shape == (8, 8) and max(train[i].image.max() for i in range(100)) == 255
  per_class = np.bincount([test[i].label for i in range(360)])
  np.testing.assert_allclose(per_class, np.bincount(labels) / 5, atol=1)
  assert as_multiset(opened('digits', 'test')) == as_multiset(test)
  assert test[7].name == 'digits/test record 7'


@pytest.mark.parametrize(
  'split,first,last',
  [
    ('train[:90%]', 0, 1293),
    ('train[90%:]', 1293, 1437),
    ('train[10:20]', 10, 20),
    ('train[-5:]', 1432, 1437),
  ],
)
def test_digits_slices(split, first, last):
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
    ('train[a:b]', 'cannot be read'),
    ('train[', 'digits has no split|cannot be read'),
  ],
)
def test_wrong_splits(split, message):
  with pytest.raises(UserError, match=message):
    opened('digits', split)


def test_classes_of_a_checkpoint_are_used_by_name():
  names = ('none', *reversed('0123456789'))
  plain, mapped = opened('digits'), opened('digits', class_names=names)
  assert mapped.class_names == names
  assert all(names[mapped[i].label] == str(plain[i].label) for i in range(50))
  with pytest.raises(UserError, match="digits has 1 classes that the model does not know, such as '9'"):
    opened('digits', class_names=tuple('012345678'))


@pytest.mark.parametrize('spec', ['tfds:shades', 'tfds:shades:1.2.0', 'tfds:{}'])
def test_prepared(shades, spec):
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


@pytest.mark.parametrize(
  'spec,message',
  [
    ('tfds:shapes', 'no data set tfds:shapes; prepared in .*: shades'),
    ('tfds:shades:val', r"shades/1.2.0 has no split 'val'; it has test, train"),
    ('tfds:shades:train[:99]', r'incompatible with 10 examples'),
    ('tfds:shades:9.9.9', 'tfds:shades:9.9.9 '),
    ('tfds:mnist', r'tfds:mnist is not prepared in .*; set TFDS_DATA_DIR .* tfds build mnist --file_format='),
    ('tfds:a b', 'tfds:a b cannot be opened'),
    ('tfds:/no/such/directory', 'is no directory prepared by TFDS'),
  ],
)
def test_wrong_prepared(shades, spec, message):
  with pytest.raises(UserError, match=message) as caught:
    opened(spec)
  assert '\n' not in str(caught.value)


def test_unknown_name_where_nothing_is_prepared(tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'none'))
  with pytest.raises(
    UserError, match=r'no data set tfds:cifar1O, and none is prepared in .*; TFDS knows cifar10'
  ):
    opened('tfds:cifar1O')


def test_data_directory_is_not_the_version_directory(shades):
  with pytest.raises(UserError, match=rf'did you mean tfds:{shades}\?'):
    opened(f'tfds:{shades.parent}')


def test_tfrecord_names_the_conversion(shades, tmp_path):
  folder = tmp_path / 'shades/1.2.0'
  shutil.copytree(shades, folder)
  info = json.loads((folder / 'dataset_info.json').read_text())
  info['fileFormat'] = 'tfrecord'
  (folder / 'dataset_info.json').write_text(json.dumps(info))
  command = f'tfds convert_format --dataset_version_dir={folder} --out_file_format=array_record'
  with pytest.raises(UserError, match=f'is prepared as tfrecord, .*{command}'):
    opened(f'tfds:{folder}')


def test_damaged_directory(shades, tmp_path):
  shutil.copytree(shades, tmp_path / '1.2.0')
  (tmp_path / '1.2.0/dataset_info.json').write_text('{')
  with pytest.raises(UserError, match='cannot be opened as a TFDS directory'):
    opened(f'tfds:{tmp_path}/1.2.0')


def test_a_damaged_file_is_named(shades, tmp_path):
  shutil.copytree(shades, tmp_path / '1.2.0')
  source = opened(f'tfds:{tmp_path}/1.2.0')
  (file,) = (tmp_path / '1.2.0').glob('*train*')
  content = file.read_bytes()
  for damaged in (content[: len(content) // 2], b'', None):
    file.unlink()
    if damaged is not None:
      file.write_bytes(damaged)
    source = opened(f'tfds:{tmp_path}/1.2.0')
    with pytest.raises(
      UserError, match=rf'shades/1.2.0/train record 3 cannot be read \(.*\); restore {file}'
    ):
      source[3]


def test_more_files_than_a_process_may_have_open(shades, tmp_path):
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
    from vit_jax import config
    from vit_jax.data import sources
    from vit_jax.errors import UserError

    resource.setrlimit(resource.RLIMIT_NOFILE, (200, int(sys.argv[2])))
    try:
      source = sources.open_source(f'tfds:{sys.argv[1]}', 'train', data=config.Data())
      print(sum(source[i].label >= 0 for i in range(0, len(source), 10)), 'read')
    except UserError as error:
      print(error)
    """
  assert '300 read' in run(script, arguments=(folder, 4000))[0]
  said = run(script, arguments=(folder, 400))[0]
  assert 'has 300 files, and a process here may open 400; raise that (ulimit -Hn) to 812' in said


def test_a_mixture(shades):
  data = config.DataConfig(mixture=(('digits:train[:20]', 3), ('tfds:shades', 1), ('digits:test[:5]', 0.5)))
  mixture = open_training(data, 0)
  assert data.title == 'digits:train[:20] + tfds:shades + digits:test[:5]'
  assert mixture.class_names == (*'0123456789', 'dark', 'middle', 'light')
  assert len(mixture) == 35 and mixture.sizes == (20, 10, 5) and mixture.weights == (3, 1, 0.5)
  parts = [opened('digits:train[:20]'), opened('tfds:shades'), opened('digits:test[:5]')]
  expected = [(source, i) for source in parts for i in range(len(source))]
  for record, (source, i) in zip((mixture[i] for i in range(35)), expected, strict=True):
    assert record.name == source[i].name
    assert mixture.class_names[record.label] == source.class_names[source[i].label]
  assert type(open_training(config.DataConfig(), 0)) is type(opened('digits'))


def test_tensorflow_is_not_imported(shades):
  script = """
    import sys
    from vit_jax import config
    from vit_jax.data import on_device, pipeline, sources

    for spec in ('digits', 'tfds:shades', f'tfds:{sys.argv[1]}'):
      print(sources.open_source(spec, 'train', data=config.Data())[0].name)
    assert not {'tensorflow', 'torch'} & set(sys.modules), set(sys.modules)
    """
  assert 'shades' in run(script, arguments=(shades,))[0]
