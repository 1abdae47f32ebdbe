"""Whole preparations."""

import csv
import hashlib
import json
import os
import shutil
import tarfile

import fsspec
import pytest
import tensorflow_datasets as tfds
from bucket_emulators import places
from prepared_sets import WHOLE, files, prepared

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import metadata, run, shard_plan
from vit_jax.prepare.images import Shrinking
from vit_jax.prepare.tables import Columns

pytestmark = pytest.mark.usefixtures('in_this_process')


def records(folder, split):
  read = tfds.builder_from_directory(folder).as_data_source
  return list(read(split=split, decoders={'image': tfds.decode.SkipDecoding()}))


def test_read_back_by_tfds(pets, tmp_path):
  folder = tmp_path / 'my_pets/2.1.0'
  result = prepared(pets, folder)
  assert result.records == {'train': 54, 'val': 12}
  assert (result.classes, result.bad, result.multi_label) == (3, 0, False)
  builder = tfds.builder_from_directory(folder)
  assert builder.info.full_name == 'my_pets/2.1.0'
  assert builder.info.features['label'].names == ['ant', 'cat', 'dog']
  assert builder.info.metadata['source'] == str(pets)
  for split, count in (('train', 54), ('val', 12)):
    found = records(folder, split)
    names = [record['file_name'].decode() for record in found]
    assert len(set(names)) == count == builder.info.splits[split].num_examples
    for record, name in zip(found, names, strict=True):
      assert record['image'] == (pets / name).read_bytes()
      assert builder.info.features['label'].int2str(record['label']) == name.split('/')[1]
  sizes = builder.info.splits['train'].shard_lengths
  assert len(sizes) > 2 and max(sizes) - min(sizes) <= 1
  # Found by name, and decoded by TFDS itself.
  val = tfds.data_source('my_pets', split='val', data_dir=str(tmp_path))
  assert len(val) == 12 and val[0]['image'].shape[2] == 3


def test_the_same_records_in_the_same_order_as_of_the_folder(pets, tmp_path):
  prepared(pets, tmp_path / 'set')
  for split in ('train', 'val', 'train[10:40]'):
    folder, ours = (
      open_source(source, split, data=DataConfig()) for source in (f'folder:{pets}', f'tfds:{tmp_path}/set')
    )
    assert len(folder) == len(ours) and folder.class_names == ours.class_names
    for number in range(len(folder)):
      assert folder[number][:2] == ours[number][:2]


def test_archives_give_the_same_as_the_folder(pets, pets_tar, pets_zip, tmp_path):
  made = []
  for number, source in enumerate((pets, pets_tar, pets_zip)):
    prepared(source, tmp_path / str(number) / 'set')
    made.append(files(tmp_path / str(number) / 'set'))
    assert json.loads(made[-1].pop('metadata.json'))['source'] == str(source)
    del made[-1]['SHA256SUMS']
  assert made[0] == made[1] == made[2]


def test_checksums_are_those_of_all_files(pets, tmp_path):
  prepared(pets, tmp_path / 'set')
  lines = dict(line.split('  ')[::-1] for line in (tmp_path / 'set/SHA256SUMS').read_text().splitlines())
  content = files(tmp_path / 'set')
  del content['SHA256SUMS']
  assert lines == {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}


def test_several_labels_become_lists(pets, tmp_path):
  (pets.parent / 'several.csv').write_text(
    'image,label,split\npets/train/cat/0.jpg,10|9,train\npets/train/dog/0.jpg,,train\n'
    'pets/train/ant/0.jpg,2,train\npets/val/ant/0.jpg,9,val\n'
  )
  assert prepared(pets.parent / 'several.csv', tmp_path / 'set').multi_label
  builder = tfds.builder_from_directory(tmp_path / 'set')
  assert builder.info.features['labels'].feature.names == ['2', '9', '10']
  found = {r['file_name'].decode(): list(r['labels']) for r in records(tmp_path / 'set', 'train')}
  assert found == {'pets/train/cat/0.jpg': [1, 2], 'pets/train/dog/0.jpg': [], 'pets/train/ant/0.jpg': [0]}
  ours = open_source(f'tfds:{tmp_path}/set', 'train', data=DataConfig(max_labels=2))
  assert [ours[number].label.tolist() for number in range(3)] == list(found.values())


@pytest.mark.parametrize(
  'text,message',
  [
    ('image,label\na.jpg,x\nb.jpg,\n', 'gives b.jpg no label; fill it in'),
    ('image,label\na.jpg,\n', 'lists no labelled images'),
    ('image,label\na.jpg,"x\ny"\n', r"has a class called 'x.*y', which cannot be printed .*; rename it"),
  ],
)
def test_unusable_labels_are_refused(tmp_path, text, message):
  (tmp_path / 'x.csv').write_text(text)
  with pytest.raises(UserError, match=message):
    prepared(tmp_path / 'x.csv', tmp_path / 'set')


def test_larger_images_are_shrunk(pets, tmp_path):
  prepared(pets, tmp_path / 'set', shrinking=Shrinking(longest_side=170, quality=80))
  copied = 0
  for record, decoded in zip(
    records(tmp_path / 'set', 'train'),
    tfds.builder_from_directory(tmp_path / 'set').as_data_source(split='train'),
  ):
    original = (pets / record['file_name'].decode()).read_bytes()
    copied += record['image'] == original
    assert max(decoded['image'].shape) <= 170
  assert copied == 3 * 11  # those up to 170 pixels wide
  settings = tfds.builder_from_directory(tmp_path / 'set').info.metadata
  assert settings['longest_side'] == 170 and settings['quality'] == 80


def damage(folder):
  (folder / 'train/cat/3.jpg').write_bytes((folder / 'train/cat/3.jpg').read_bytes()[:1000])
  (folder / 'train/dog/4.jpg').write_bytes(b'')
  (folder / 'val/ant/1.jpg').write_text('no image')


def bad_images(folder):
  with open(folder / 'bad_images.csv') as file:
    return {row['image']: (row['split'], row['reason']) for row in csv.DictReader(file)}


def test_bad_images_stop_it_until_they_are_repaired(pets, copy_of_pets, tmp_path, in_this_process):
  damage(copy_of_pets)
  with pytest.raises(UserError, match=r'^3 of 66 images are bad \(all: .*bad_images.csv\), such as '):
    prepared(copy_of_pets, tmp_path / 'set')
  found = bad_images(tmp_path / 'set/.unfinished')
  assert found['train/dog/4.jpg'] == ('train', 'is empty (0 bytes)')
  assert found['val/ant/1.jpg'] == ('val', 'is not an image of a known format')
  assert found.keys() == {'train/cat/3.jpg', 'train/dog/4.jpg', 'val/ant/1.jpg'}
  assert found['train/cat/3.jpg'][1].startswith('cannot be decoded (')
  with pytest.raises(UserError, match='is no directory prepared by TFDS'):
    open_source(f'tfds:{tmp_path}/set', 'train', data=DataConfig())

  first = len(in_this_process)
  shutil.copytree(pets, copy_of_pets, dirs_exist_ok=True)
  assert prepared(copy_of_pets, tmp_path / 'set').bad == 0
  assert 1 <= len(in_this_process) - first <= 3  # only the shards that had bad images
  prepared(copy_of_pets, tmp_path / 'undisturbed/set')
  assert files(tmp_path / 'set') == files(tmp_path / 'undisturbed/set')


def test_bad_images_are_left_out_on_demand(copy_of_pets, tmp_path, in_this_process):
  damage(copy_of_pets)
  with pytest.raises(UserError):
    prepared(copy_of_pets, tmp_path / 'set')
  first = len(in_this_process)
  result = prepared(copy_of_pets, tmp_path / 'set', skip_bad=True)
  assert len(in_this_process) == first  # nothing is done twice
  assert result.bad == 3 and result.records == {'train': 52, 'val': 11}
  assert len(bad_images(tmp_path / 'set')) == 3
  names = {record['file_name'].decode() for record in records(tmp_path / 'set', 'train+val')}
  assert len(names) == 63 and not names & bad_images(tmp_path / 'set').keys()
  for file in (copy_of_pets / 'val').rglob('*.jpg'):
    file.write_bytes(b'')
  with pytest.raises(UserError, match='All images of val are bad, such as val/'):
    prepared(copy_of_pets, tmp_path / 'other', skip_bad=True)


def test_a_file_that_vanishes_is_a_bad_image(copy_of_pets, tmp_path):
  shard_plan.make(str(copy_of_pets), str(tmp_path / 'set/.unfinished'), 2**20)
  os.remove(copy_of_pets / 'val/cat/2.jpg')
  with pytest.raises(UserError, match=r'1 of 66 images is bad: val/cat/2.jpg, which cannot be read'):
    prepared(copy_of_pets, tmp_path / 'set')


def test_progress_counts_every_image_once(pets, tmp_path):
  seen = []
  run.prepare(str(pets), str(tmp_path / 'set'), run.Options(WHOLE), lambda *now: seen.append(now))
  listed = [done for done, total in seen if total == 0]
  assert sum(listed) == 66 and {total for _, total in seen} == {0, 66}
  assert sum(done for done, _ in seen) - sum(listed) == 66


def test_other_settings_are_refused(pets, copy_of_pets, tmp_path):
  options = run.Options(WHOLE)
  assert not run.complete_records(str(pets), str(tmp_path / 'set'), options)
  run.prepare(str(pets), str(tmp_path / 'set'), options)
  assert run.complete_records(str(pets), str(tmp_path / 'set'), options) == {'train': 54, 'val': 12}
  with pytest.raises(UserError, match=r'set was prepared with source .*pets, not with source .*pets; choose'):
    run.complete_records(str(copy_of_pets), str(tmp_path / 'set'), options)
  with pytest.raises(UserError, match='set was prepared without longest_side, not with longest_side 100'):
    run.complete_records(str(pets), str(tmp_path / 'set'), run.Options(Shrinking(longest_side=100)))
  with pytest.raises(UserError, match='set was prepared without image_column, not with image_column id'):
    run.complete_records(str(pets), str(tmp_path / 'set'), run.Options(WHOLE, columns=Columns(image='id')))


def test_cut_tar_is_an_error_unless_bad_images_are_skipped(pets_tar, tmp_path):
  with tarfile.open(pets_tar) as tar:
    end = tar.getmembers()[-10].offset
  (tmp_path / 'cut.tar').write_bytes(pets_tar.read_bytes()[:end])
  with pytest.raises(UserError, match=r'cut.tar cannot be read as an archive \(cut short at byte \d+'):
    prepared(tmp_path / 'cut.tar', tmp_path / 'set')
  result = prepared(tmp_path / 'cut.tar', tmp_path / 'set', skip_bad=True)
  assert sum(result.records.values()) == 56


def test_a_folder_of_something_else_is_left_alone(pets, tmp_path):
  (tmp_path / 'mine.txt').write_text('dear')
  with pytest.raises(UserError, match='is neither empty nor an unfinished preparation'):
    prepared(pets, tmp_path)
  assert list(tmp_path.iterdir()) == [tmp_path / 'mine.txt']


def test_addresses_give_the_same_as_local_files(pets, pets_tar, tmp_path):
  memory = fsspec.filesystem('memory')
  try:
    for file in pets.rglob('*.jpg'):
      memory.put_file(str(file), f'memory://bucket/pets/{file.relative_to(pets)}')
    memory.put_file(str(pets_tar), 'memory://bucket/pets.tar')
    memory.pipe_file('memory://bucket/pets/train/cat/.hidden.jpg', b'')
    prepared(pets, tmp_path / 'set')
    expected = files(tmp_path / 'set')
    for source in ('memory://bucket/pets', 'memory://bucket/pets.tar'):
      destination = f'memory://bucket/made/{source[-3:]}/set'
      prepared(source, destination)
      assert run.complete_records(source, destination, run.Options(WHOLE, 1))
      top = destination.removeprefix('memory:/') + '/'
      made = {path.removeprefix(top): memory.cat_file(path) for path in memory.find(destination)}
      assert made.keys() == expected.keys()
      assert all(made[name] == expected[name] for name in made if name not in ('metadata.json', 'SHA256SUMS'))
  finally:
    memory.store.clear()


def test_unknown_kind_of_address_is_refused(tmp_path):
  with pytest.raises(UserError, match=r'nosuch://x/dataset_info.json cannot be reached'):
    run.complete_records('nosuch://y', 'nosuch://x', run.Options(WHOLE))


@pytest.mark.parametrize(
  'path,expected',
  [
    ('/d/flowers/2.0.0', ('flowers', '2.0.0')),
    ('/d/flowers', ('flowers', '1.0.0')),
    ('/d/my-flowers é', ('my_flowers', '1.0.0')),
    ('/d/2024', ('images_2024', '1.0.0')),
    ('gs://bucket/flowers/1.0.1', ('flowers', '1.0.1')),
  ],
)
def test_name_and_version_come_from_the_path(path, expected):
  assert metadata.name_and_version(path) == expected


@pytest.mark.nightly
@pytest.mark.slow
def test_bucket_whose_connections_break_is_prepared_whole_and_read(pets, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  prepared(pets, tmp_path / 'set')
  with places('gs') as place:
    address = place.put_folder(pets, 'pets')
    place.proxy.faults[:] = ['cut', 503, 'whole', 'cut']
    place.proxy.write_faults[:] = [503]
    prepared(address, 'gs://bucket/made/set')
    assert not place.proxy.faults and not place.proxy.write_faults
    names = [name for name in place.names('made/set') if 'array_record' in name]
    assert names
    for name in names:
      assert place.get(name) == (tmp_path / 'set' / name.rpartition('/')[2]).read_bytes()
    here, there = (
      open_source(f'tfds:{folder}', 'train', data=DataConfig())
      for folder in (tmp_path / 'set', 'gs://bucket/made/set')
    )
    assert [(r.image, r.label) for r in there] == [(r.image, r.label) for r in here]


def test_bucket_that_may_not_be_read_is_no_bad_image(pets):
  with places('gs') as place:
    address = place.put_folder(pets, 'pets')
    place.proxy.faults[:] = [403] * 1000
    with pytest.raises(UserError, match='may not be used with the credentials here'):
      prepared(address, 'gs://bucket/made/set', skip_bad=True)
