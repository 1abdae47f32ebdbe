"""The grammar of specs, and the registry of sources."""

import numpy as np
import pytest
from processes import run

from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.data.sources import open_source, open_training, parse
from vit_jax.data.sources.base import SOURCES, NamedSource, Part, Record, Source, label_map, select
from vit_jax.foundation.errors import UserError


@pytest.mark.parametrize(
  'spec,expected',
  [
    ('digits', ('digits', '', 'S')),
    ('digits:', ('digits', '', 'S')),
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
def test_spec_is_kind_place_and_split(spec, expected):
  assert parse(spec, 'S') == expected


def test_existing_directory_is_not_a_split(tmp_path):
  (tmp_path / 'a:b').mkdir()
  assert parse(f'folder:{tmp_path}/a:b', 'train') == ('folder', f'{tmp_path}/a:b', 'train')


@pytest.mark.parametrize(
  ('spec', 'said'),
  [
    ('vtab:', r"^'vtab:' names no place behind its ':'; write 'vtab:TASK'\.$"),
    ('', r"^'' is not a source; write 'digits', 'tfds:NAME', .*, 'folder:/path' or 'vtab:TASK'\.$"),
    ('http://x/y', "^'http://x/y' is not a source; write 'digits', "),
    ('wds:/data/i21k/{000..999}.tar', 'vit_jax prepare /data/i21k ~/'),
    ('parquet:/data/hub/*.parquet', 'vit_jax prepare /data/hub ~/'),
    ('hf:org/name', 'vit_jax prepare hf:org/name ~/'),
  ],
)
def test_wrong_spec_says_what_to_write(spec, said):
  with pytest.raises(UserError, match=said):
    open_source(spec, 'train', data=DataConfig())


class NpySource(NamedSource):
  """A pair of .npy files, <place>_images.npy and <place>_labels.npy."""

  def __init__(self, place, split, class_names):
    images, labels = (np.load(f'{place}_{name}.npy') for name in ('images', 'labels'))
    ((_, first, last),) = select(split, {'train': len(labels)}, place)
    names = [str(number) for number in range(labels.max() + 1)]
    self.class_names = tuple(class_names or names)
    self._images = images[first:last]
    self._labels = label_map(names, class_names, place)[labels[first:last]].astype(np.int32)
    self._place = place

  @classmethod
  def open(cls, place, split, *, data, class_names):
    return cls(place, split, class_names)

  @classmethod
  def splits(cls, place):
    return ('train',)

  def __len__(self):
    return len(self._labels)

  def __getitem__(self, index):
    return Record(self._images[index], int(self._labels[index]), f'{self._place} record {index}')

  def labels(self):
    return self._labels


@pytest.fixture
def npy(tmp_path, monkeypatch):
  """The place of a pair of files, whose kind of source is registered for the test."""
  monkeypatch.setattr(SOURCES, '_entries', dict(SOURCES._entries))
  SOURCES.register('npy', NpySource)
  np.save(tmp_path / 'six_images.npy', np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4))
  np.save(tmp_path / 'six_labels.npy', np.array([0, 1, 2, 0, 1, 2]))
  return tmp_path / 'six'


def test_source_registered_from_outside_is_opened_selected_mixed_and_trained_on(npy, split_over):
  source = open_source(f'npy:{npy}:train[2:]', 'train', data=DataConfig())
  assert isinstance(source, Source) and len(source) == 4 and source.parts == (Part(4, 1),)
  assert source[0].name == f'{npy} record 0' and source[0].label == 2
  backwards = open_source(f'npy:{npy}', 'train', data=DataConfig(), class_names=('2', '1', '0'))
  assert backwards.labels().tolist() == [2, 1, 0, 2, 1, 0]
  assert len(open_training(DataConfig(source=f'npy:{npy}', classes=('1',), max_per_class=1), 0)) == 1
  parts = ((f'npy:{npy}', 1.0), ('digits', 1.0))
  data = DataConfig(mixture=parts, image_size=(4, 4), crop='resize', channels=1)
  mixture = open_training(data, 0)
  batch = TrainPipeline(mixture, data, batch_size=8, seed=0, sharding=split_over(2)).batch(0)
  assert batch['image'].shape == (8, 4, 4, 1)
  with pytest.raises(UserError, match=r"'npy' names no place behind its ':'; write 'npy:PLACE'\."):
    parse('npy', 'train')
  with pytest.raises(UserError, match=r"'npz' is not a source; write .*'vtab:TASK' or 'npy:PLACE'"):
    parse('npz', 'train')


def test_name_of_a_source_cannot_be_taken_twice(npy):
  with pytest.raises(ValueError, match='registered already'):
    SOURCES.register('digits', NpySource)


@pytest.mark.parametrize('kind', SOURCES.names())
def test_every_registered_source_follows_the_contract(kind):
  source = SOURCES[kind]
  assert issubclass(source, NamedSource) and not source.__abstractmethods__
  for form in source.forms:
    assert form.split(':')[0] == kind and (':' in form) == source.has_place


@pytest.mark.parametrize('spec', ['digits', 'tfds:shades'])
def test_every_split_that_a_source_lists_opens(spec, shades_dir, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(shades_dir))
  kind, place, _ = parse(spec, '')
  splits = SOURCES[kind].splits(place)
  assert set(splits) == {'train', 'test'}
  assert all(len(open_source(spec, split, data=DataConfig())) for split in splits)


def test_select_is_tfdss_own_arithmetic():
  import tensorflow_datasets as tfds

  sizes = {'train': 1437, 'test': 360}
  infos = {name: tfds.core.SplitInfo(name=name, shard_lengths=[n], num_bytes=0) for name, n in sizes.items()}
  for split in ('train', 'test', 'train[:33%]', 'train[-5:]', 'test[10%:]+train[7:9]', 'all'):
    parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
    expected = [(p.splitname, p.from_ or 0, sizes[p.splitname] if p.to is None else p.to) for p in parts]
    assert select(split, sizes, 'here') == expected


@pytest.mark.slow
def test_tfds_is_imported_for_its_sources_and_slices_only_and_tensorflow_and_pytorch_never(shades_dir):
  script = """
    import os, sys
    from vit_jax.data import on_device, pipeline, sources
    from vit_jax.data.config import DataConfig

    os.environ['TFDS_DATA_DIR'] = sys.argv[1]
    print(sources.open_source('digits', 'train', data=DataConfig())[0].name)
    assert 'tensorflow_datasets' not in sys.modules
    print(len(sources.open_source('digits', 'train[:10]', data=DataConfig())), 'sliced')
    assert 'tensorflow_datasets' in sys.modules
    for spec in ('tfds:shades', f'tfds:{sys.argv[1]}/shades/1.2.0'):
      print(sources.open_source(spec, 'train', data=DataConfig())[0].name)
    assert not {'tensorflow', 'torch'} & set(sys.modules), set(sys.modules)
    """
  output = run(script, arguments=(shades_dir,))[0]
  assert 'digits/train record 0' in output and '10 sliced' in output
  assert output.count('shades/1.2.0/train record 0') == 2
