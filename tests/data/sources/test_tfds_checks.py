"""A data set directory runs no code, and damage to its small files is noticed."""

import hashlib
import json
import os
import shutil

import pytest
import tensorflow_datasets as tfds

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source, tfds_checks
from vit_jax.foundation.errors import UserError

FEATURES = 'tensorflow_datasets.core.features.'
TEXT = FEATURES + 'text_feature.Text'
SEQUENCE = FEATURES + 'sequence_feature.Sequence'


@pytest.fixture
def folder(shades_dir, tmp_path, monkeypatch):
  """A copy of the prepared data set `shades`, which is also found by name."""
  folder = tmp_path / 'data/shades/1.2.0'
  shutil.copytree(shades_dir / 'shades/1.2.0', folder)
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'data'))
  return folder


@pytest.fixture
def payload(tmp_path, monkeypatch, request):
  """The name of a class whose module can be imported, and the file that exists after it was."""
  module = 'payload_' + hashlib.sha256(request.node.name.encode()).hexdigest()[:8]
  (tmp_path / f'{module}.py').write_text('open(__file__ + ".ran", "w").close()')
  monkeypatch.syspath_prepend(tmp_path)
  return f'{module}.Text', tmp_path / f'{module}.py.ran'


def edit_json(path, change):
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))


def feature(make):
  """An attack: the feature 'id' of features.json becomes what `make` gives for the name of a class."""

  def attack(folder, name):
    edit_json(folder / 'features.json', lambda c: c['featuresDict']['features'].update(id=make(name)))

  return attack


def whole(make, file='features.json'):
  """An attack: what `make` gives for the name of a class is put into a file's object."""
  return lambda folder, name: edit_json(folder / file, lambda content: content.update(make(name)))


def old(make):
  """An attack: features.json as TFDS's old versions wrote it."""

  def attack(folder, name):
    content = {'type': f'{FEATURES}features_dict.FeaturesDict', **make(name)}
    (folder / 'features.json').write_text(json.dumps(content))

  return attack


def in_json(name):
  return json.dumps({'feature': {'type': name, 'content': {}}, 'length': 3})


def proto(name):
  return json.dumps({'features': {'id': {'pythonClassName': name, 'text': {}}}})


ATTACKS = {
  'in a feature': feature(lambda name: {'pythonClassName': name, 'text': {}}),
  'in the other spelling': feature(lambda name: {'python_class_name': name, 'text': {}}),
  'at the top': whole(lambda name: {'pythonClassName': name}),
  'in a sequence': feature(
    lambda name: {
      'pythonClassName': SEQUENCE,
      'sequence': {'feature': {'pythonClassName': name, 'text': {}}, 'length': '-1'},
    }
  ),
  'in JSON within JSON': feature(
    lambda n: {'pythonClassName': SEQUENCE, 'jsonFeature': {'json': in_json(n)}}
  ),
  'as old versions wrote it': old(lambda name: {'content': {'id': {'type': name, 'content': {}}}}),
  'as old versions wrote a protocol buffer': old(
    lambda name: {'content': proto(name), 'proto_cls': 'tensorflow_datasets.FeaturesDict'}
  ),
  'in the info': whole(lambda n: {'features': {'pythonClassName': n, 'text': {}}}, 'dataset_info.json'),
}


@pytest.mark.parametrize('attack', ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize('spec', ['tfds:{}', 'tfds:shades', 'tfds:Shades', 'tfds:shades:1.2.0'])
def test_code_named_by_a_data_set_is_never_imported(folder, payload, attack, spec):
  name, ran = payload
  attack(folder, name)
  with pytest.raises(UserError, match=f"names the feature class '{name}', which is not one of") as error:
    open_source(spec.format(folder), 'train', data=DataConfig())
  assert '\n' not in str(error.value) and not ran.exists()


@pytest.mark.parametrize('attack', ATTACKS.values(), ids=ATTACKS)
def test_tfds_itself_imports_it(folder, payload, attack):
  """Otherwise the test above would show nothing."""
  name, ran = payload
  attack(folder, name)
  with pytest.raises(ValueError, match='Unrecognized FeatureConnector type'):
    tfds.builder_from_directory(folder)
  assert ran.exists()


def test_allowed_classes_are_those_that_tfds_has_imported_itself():
  known = set(tfds.features.FeatureConnector._registered_features)
  assert known >= tfds_checks._ALLOWED
  base = tfds.features.FeatureConnector
  exported = {getattr(tfds.features, name) for name in tfds.features.__all__} - {base}
  connectors = {cls for cls in exported if isinstance(cls, type) and issubclass(cls, base)}
  names = {f'{cls.__module__}.{cls.__name__}' for cls in connectors}
  assert names <= tfds_checks._ALLOWED


def test_features_of_old_versions_are_read(folder):
  """TFDS's own classes in the old form, and a feature that is called 'type'."""
  label = {'type': f'{FEATURES}class_label_feature.ClassLabel', 'content': {'num_classes': 3}}
  image = {'shape': [6, 6, 3], 'dtype': 'uint8', 'encoding_format': 'png'}
  content = {
    'type': {'type': TEXT, 'content': {}},
    'photo': {'type': f'{FEATURES}image_feature.Image', 'content': image},
    'colour': label,
    'id': {'type': TEXT, 'content': {}},
  }
  old = {'type': f'{FEATURES}features_dict.FeaturesDict', 'content': content}
  (folder / 'features.json').write_text(json.dumps(old))
  tfds_checks.check_directory(tfds.core.Path(folder))


def test_types_of_the_schema_are_no_classes(folder):
  def change(content):
    content['schema'] = {'feature': [{'name': 'id', 'type': 'BYTES'}]}

  edit_json(folder / 'dataset_info.json', change)
  assert len(open_source(f'tfds:{folder}', 'train', data=DataConfig())) == 10


def test_deeply_nested_features_are_refused(folder):
  (folder / 'features.json').write_text('[' * 2000 + ']' * 2000)
  with pytest.raises(UserError, match='nested too deeply'):
    open_source(f'tfds:{folder}', 'train', data=DataConfig())


def test_records_without_named_features_are_refused(folder):
  (folder / 'features.json').write_text(json.dumps({'pythonClassName': TEXT, 'text': {}}))
  with pytest.raises(UserError, match=r'no named features|cannot be opened'):
    open_source(f'tfds:{folder}', 'train', data=DataConfig())


def test_pipe_in_place_of_a_file_does_not_hang(folder):
  (folder / 'features.json').unlink()
  os.mkfifo(folder / 'features.json')
  with pytest.raises(UserError, match=r'features\.json cannot be read \(it is not a regular file\)'):
    open_source(f'tfds:{folder}', 'train', data=DataConfig())


@pytest.fixture
def summed(folder):
  """The data set with checksums as `vit_jax.prepare` writes them."""
  (folder / 'bad_images.csv').write_text('image,split,reason\n')
  sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
  (folder / 'SHA256SUMS').write_text(''.join(f'{digest}  {name}\n' for name, digest in sums.items()))
  return folder


def test_sound_directory_with_checksums_is_opened(summed):
  (summed / 'bad_images.csv').unlink()  # read by people only
  assert open_source(f'tfds:{summed}', 'train', data=DataConfig()).class_names == ('dark', 'middle', 'light')


@pytest.mark.parametrize('name', ['colour.labels.txt', 'features.json', 'dataset_info.json'])
def test_every_damage_of_a_small_file_is_noticed(summed, name):
  """One byte changed, at any place, and lines lost, added and swapped."""
  path = summed / name
  content = path.read_bytes()
  lines = content.splitlines(keepends=True)
  damages = [content[:-1], content + b'\n', b''.join(lines[1:]), b''.join(lines[::-1]), b'']
  for place in range(0, len(content), max(len(content) // 40, 1)):
    damages.append(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
  for damaged in damages:
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=f'{name}|names the feature class') as error:
      open_source(f'tfds:{summed}', 'train', data=DataConfig())
    assert '\n' not in str(error.value)
  path.write_bytes(content)
  assert len(open_source(f'tfds:{summed}', 'train', data=DataConfig())) == 10


def test_class_names_that_are_lost_are_noticed(summed):
  (summed / 'colour.labels.txt').unlink()
  with pytest.raises(UserError, match=r'labels\.txt is not the file whose checksum is in SHA256SUMS'):
    open_source('tfds:shades', 'train', data=DataConfig())


def test_damaged_checksums_are_noticed(summed):
  path = summed / 'SHA256SUMS'
  content = path.read_text()
  label = content.index('colour.labels')
  for damaged in (
    content.replace('  colour', ' colour'),
    content[: label - 4] + 'x' + content[label - 3 :],
    content.replace('colour.labels.txt', 'colour.labels.txu'),
    content.replace('colour.labels.txt', '../colour.labels.txt'),
  ):
    path.write_text(damaged)
    with pytest.raises(UserError, match='SHA256SUMS'):
      open_source(f'tfds:{summed}', 'train', data=DataConfig())


def in_info(change):
  def attack(folder):
    edit_json(folder / 'dataset_info.json', change)

  return attack


FILES = {
  'a template': in_info(lambda c: c['splits'][0].update(filepathTemplate='../x-{SPLIT}')),
  'the other spelling': in_info(lambda c: c['splits'][0].update(filepath_template='/dev/{SPLIT}')),
  'a name that leads elsewhere': in_info(lambda c: c.update(name='../x')),
  'a split that leads elsewhere': in_info(lambda c: c['splits'][0].update(name='../x')),
}


@pytest.mark.parametrize('attack', FILES.values(), ids=FILES)
def test_shards_are_files_of_their_folder(folder, attack):
  attack(folder)
  with pytest.raises(UserError, match=r'dataset_info\.json has .* which is no file of its folder') as error:
    open_source(f'tfds:{folder}', 'train', data=DataConfig())
  assert '\n' not in str(error.value)


def test_shards_without_end_are_refused_before_anything_is_made_of_them(folder):
  in_info(lambda c: c['splits'][0].update(shardLengths=['1'] * 200_000))(folder)
  with pytest.raises(UserError, match='names 200,000 shards of a split'):
    open_source(f'tfds:{folder}', 'train', data=DataConfig())
  in_info(lambda c: [split.update(shardLengths=[str(10**18)]) for split in c['splits']])(folder)
  with pytest.raises(UserError, match=r'less than the 1,000,000,000,000,000,000 records|cannot be read'):
    open_source(f'tfds:{folder}', 'train', data=DataConfig())
