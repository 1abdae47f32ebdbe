"""Sources of folders and archives: which images they have, in which split and class."""

import pytest
from made_samples import shard
from made_sources import PICTURE, folder_of, make, tar_around, tar_of, zip_of

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source
from vit_jax.foundation.errors import UserError
from vit_jax.prepare.listing import Listing
from vit_jax.prepare.tables import Columns

kinds = pytest.mark.parametrize('kind', ['folder', 'tar', 'zip'])


@kinds
def test_folders_are_classes(listed, tmp_path, kind):
  names = ('b/1.jpg', 'a/2.PNG', 'a/deep/er/3.webp', 'a/notes.txt', '.hidden/4.jpg')
  source = make(kind, tmp_path / 'x', *names)
  assert listed(source) == {name: ('train', name[0]) for name in names[:3]}


@kinds
def test_folders_around_classes_are_splits(listed, tmp_path, kind, caplog):
  names = ('train/a/1.jpg', 'validation/a/2.jpg', 'test/b/3.jpg', 'extra/c/4.jpg', 'train/5.jpg')
  source = make(kind, tmp_path / 'x', *names)
  assert listed(source) == {
    'train/a/1.jpg': ('train', 'a'),
    'validation/a/2.jpg': ('val', 'a'),
    'test/b/3.jpg': ('test', 'b'),
  }
  assert 'ignored 2 images in no class folder' in caplog.text


def test_folder_that_has_two_names_is_read_by_both_and_never_within_itself(listed, tmp_path):
  """As `folder:` reads it: a split or a class that is a link to another one is there."""
  folder_of(tmp_path / 'x', 'train/a/1.jpg', 'test/a/2.jpg')
  (tmp_path / 'x/val').symlink_to('test')
  (tmp_path / 'x/train/b').symlink_to('a')
  (tmp_path / 'x/train/a/loop').symlink_to('..')
  assert listed(tmp_path / 'x') == {
    'test/a/2.jpg': ('test', 'a'),
    'train/a/1.jpg': ('train', 'a'),
    'train/b/1.jpg': ('train', 'b'),
    'val/a/2.jpg': ('val', 'a'),
  }
  for split, count in (('train', 2), ('val', 1), ('test', 1)):
    assert len(open_source(f'folder:{tmp_path / "x"}', split, data=DataConfig())) == count


@pytest.mark.parametrize('kind', ['tar', 'zip'])
@pytest.mark.parametrize(
  'names,expected',
  [
    (['top/a/1.jpg', 'top/b/1.jpg'], {'a/1.jpg': 'a', 'b/1.jpg': 'b'}),
    (['./top/a/1.jpg', 'top/b//1.jpg', 'cover.jpg'], {'a/1.jpg': 'a', 'b/1.jpg': 'b'}),
    (['x/y/train/a/1.jpg', 'x/y/train/b/1.jpg'], {'train/a/1.jpg': 'a', 'train/b/1.jpg': 'b'}),
    (['one/1.jpg', 'one/2.jpg'], {'one/1.jpg': 'one', 'one/2.jpg': 'one'}),
    (['top/one/1.jpg', '__MACOSX/top/one/._1.jpg'], {'one/1.jpg': 'one'}),
    (['../up/a/1.jpg', '/up/b/1.jpg'], {'b/1.jpg': 'b'}),
  ],
)
def test_single_folders_in_an_archive_are_passed_over(listed, tmp_path, kind, names, expected):
  found = listed(make(kind, tmp_path / 'archive', *names))
  assert found == {name: ('train', label) for name, label in expected.items()}


def test_archive_beside_images_in_a_folder_is_just_another_file(listed, tmp_path, caplog):
  source = folder_of(tmp_path / 'x', 'a/1.jpg', 'b/1.jpg')
  tar_of(source / 'backup.tar', 'a/1.jpg', 'b/1.jpg')
  assert listed(source) == {'a/1.jpg': ('train', 'a'), 'b/1.jpg': ('train', 'b')}
  assert 'ignored 1 files that are not images, such as backup.tar' in caplog.text


@pytest.mark.parametrize('kind', ['tar', 'zip'])
def test_archives_in_a_folder_are_classes(listed, tmp_path, kind, caplog):
  """As ImageNet comes: a folder with a tar for each class."""
  for name in ('n01', 'n02'):
    make(kind, tmp_path / f'x/train/{name}.{kind}', f'{name}_1.JPEG', f'{name}_2.JPEG')
  expected = {f'train/{n}/{n}_{i}.JPEG': ('train', n) for n in ('n01', 'n02') for i in (1, 2)}
  assert listed(tmp_path / 'x') == expected
  assert not caplog.text


def test_tars_in_a_tar_are_classes(listed, tmp_path):
  """As ImageNet comes: a tar with a tar for each class."""
  inner = [tar_of(tmp_path / f'{name}.tar', f'{name}_1.JPEG', f'{name}_2.JPEG') for name in ('n01', 'n02')]
  found = listed(tar_around(tmp_path / 'all.tar', *inner))
  assert found == {f'{n}/{n}_{i}.JPEG': ('train', n) for n in ('n01', 'n02') for i in (1, 2)}


def test_archives_in_a_folder_may_be_splits(listed, tmp_path):
  zip_of(tmp_path / 'x/train.zip', 'a/1.jpg', 'b/1.jpg')
  tar_of(tmp_path / 'x/val.tar', 'a/2.jpg', 'b/2.jpg')
  expected = (('train', 'a', 1), ('train', 'b', 1), ('val', 'a', 2), ('val', 'b', 2))
  assert listed(tmp_path / 'x') == {f'{split}/{c}/{i}.jpg': (split, c) for split, c, i in expected}


@pytest.mark.parametrize('sample', [{'jpg': PICTURE, 'txt': '7'}, {'txt': '7', 'jpg': PICTURE}])
@pytest.mark.parametrize('name', ['flowers', 'train/shard'])
def test_samples_without_a_label_are_refused(listed, tmp_path, sample, name):
  """Images with captions are no class, however their archive is called."""
  shard(tmp_path / f'x/{name}.tar', *[sample] * 3)
  with pytest.raises(UserError, match=r'x holds .*which prepare does not read; .*class.*\.csv'):
    listed(tmp_path / 'x')


def test_webdataset_shards_in_a_tar_are_refused(listed, tmp_path):
  outer = tar_around(tmp_path / 'all.tar', shard(tmp_path / 'flowers.tar', {'jpg': PICTURE, 'json': '7'}))
  with pytest.raises(UserError, match=r'samples \(such as flowers/000000.jpg with 000000.json'):
    listed(outer)


def test_numbered_archives_within_class_folders_are_read(listed, tmp_path):
  for name in ('cat', 'dog'):
    zip_of(tmp_path / f'x/{name}/batch-001.zip', '1.jpg')
  assert listed(tmp_path / 'x') == {f'{name}/batch-001/1.jpg': ('train', name) for name in ('cat', 'dog')}


@pytest.mark.parametrize('name', ['images-000000.tar', 'train/images_1.zip'])
def test_numbered_archives_in_a_folder_are_refused(listed, tmp_path, name):
  """Parts of a download, whose labels are elsewhere, are not one class each."""
  make(name[-3:], tmp_path / 'x' / name, '1.jpg', '2.jpg')
  with pytest.raises(UserError, match=f'x holds the archive {name[:-4]}, whose name is that of a part'):
    listed(tmp_path / 'x')


@pytest.mark.parametrize('ending', ['tar', 'tgz'])
def test_numbered_archives_beside_images_are_refused(listed, tmp_path, ending):
  """As in a clone of a repository: a picture for its page, and the data in shards."""
  source = folder_of(tmp_path / 'x', 'assets/teaser.png', f'data/00000.{ending}', f'data/00001.{ending}')
  with pytest.raises(UserError, match='x holds the archive data/00000, whose name is that of a part'):
    listed(source)


def test_archive_of_class_folders_in_a_folder_is_refused(listed, tmp_path):
  zip_of(tmp_path / 'x/photos.zip', 'top/cat/1.jpg', 'top/dog/1.jpg')
  with pytest.raises(UserError, match=r'x holds the archive photos, which is no class, .*\(cat, dog\)'):
    listed(tmp_path / 'x')


def test_archive_of_a_class_may_have_a_folder(listed, tmp_path):
  zip_of(tmp_path / 'x/n01.zip', 'n01/1.jpg', 'n01/2.jpg', 'n01/more/3.jpg')
  assert set(listed(tmp_path / 'x').values()) == {('train', 'n01')}


@pytest.mark.parametrize(
  ('name', 'said', 'beside'),
  [
    ('a.arrow', 'which prepare does not read; put the images into', 'dog/1.jpg'),
    ('train.tfrecord-00000-of-00010', 'which prepare does not read; put the images into', 'dog.tar'),
    ('cat.tar.gz', 'which has no random access', 'dog.tar'),
    ('cat.7z', 'which has no random access', 'dog.tar'),
  ],
)
def test_files_of_records_and_compressed_archives_are_refused(listed, tmp_path, name, said, beside):
  folder_of(tmp_path / 'x', name, beside)
  if beside == 'dog.tar':
    tar_of(tmp_path / 'x/dog.tar', '1.jpg')
  with pytest.raises(UserError, match=f'x holds {name}, {said}'):
    listed(tmp_path / 'x')


def test_label_files_beside_images_in_class_folders_are_ignored(listed, tmp_path, caplog):
  """Photos with their descriptions, as annotation tools leave them."""
  source = folder_of(tmp_path / 'x', 'a/1.jpg', 'a/1.json', 'b/1.jpg', 'b/1.txt')
  assert set(listed(source)) == {'a/1.jpg', 'b/1.jpg'}
  assert 'ignored 2 files that are not images' in caplog.text


def test_numbers_as_folder_names_are_sorted_as_text(tmp_path):
  listing = Listing(str(tar_of(tmp_path / 'x.tar', '10/1.jpg', '9/1.jpg')), tmp_path, str(tmp_path))
  assert listing.ordered_classes({'9', '10'})[1] == ['10', '9']


def test_sources_of_no_known_kind_are_refused(listed, tmp_path):
  with pytest.raises(UserError, match=r'There is no .*none; give a folder, a tar or zip archive, or a file'):
    listed(tmp_path / 'none')
  (tmp_path / 'file.txt').write_text('hello')
  with pytest.raises(UserError, match=r'file.txt is neither a tar nor a zip'):
    listed(tmp_path / 'file.txt')
  for empty in (tar_of(tmp_path / 'flat.tar', '1.jpg', '2.jpg'), folder_of(tmp_path / 'flat', '1.jpg')):
    with pytest.raises(UserError, match='has no images in class folders'):
      listed(empty)
  with pytest.raises(UserError, match=r'x.zip is not a table; leave out --image_column'):
    listed(zip_of(tmp_path / 'x.zip', 'a/1.jpg'), columns=Columns(image='id'))
