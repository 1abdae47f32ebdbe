import io
import itertools
import os

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import folder_listing, open_source
from vit_jax.data.sources.folder import FolderSource
from vit_jax.foundation.errors import UserError


def opened(root, split='train', **options):
  data = DataConfig(val_fraction=options.pop('val_fraction', 0.1))
  return open_source(f'folder:{root}', split, data=data, **options)


def jpeg():
  file = io.BytesIO()
  Image.new('RGB', (4, 4), 'red').save(file, 'jpeg')
  return file.getvalue()


def write(root, *paths):
  for path in paths:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(jpeg())


def is_held_out(path, fraction):
  return folder_listing.path_hash(path) < fraction * 2**64


def names(source):
  """{path relative to the root: class}."""
  records = [source[i] for i in range(len(source))]
  return {os.path.basename(record.name): source.class_names[record.label] for record in records}


@pytest.fixture
def pets(tmp_path):
  write(tmp_path, *(f'train/{pet}/{pet}{i}.jpg' for pet in ('cat', 'dog', 'ant') for i in range(5)))
  write(tmp_path, *(f'val/{pet}/v{pet}{i}.PNG' for pet in ('cat', 'dog', 'ant') for i in range(2)))
  return tmp_path


@pytest.mark.parametrize(
  'folders',
  [('',), ('train/',), ('train/', 'test/'), ('train/', 'validation/'), ('train/', 'val/', 'test/')],
  ids='+'.join,
)
def test_every_split_that_is_listed_opens_and_no_other_does(tmp_path, folders):
  write(tmp_path, *(f'{top}{pet}/{i}.jpg' for top in folders for pet in ('cat', 'dog') for i in range(20)))
  listed = set(FolderSource.splits(str(tmp_path)))
  for split in ('train', 'val', 'test'):
    if split in listed:
      assert len(opened(tmp_path, split))
    else:
      with pytest.raises(UserError, match=f'has no split {split!r}; it has {", ".join(sorted(listed))}'):
        opened(tmp_path, split)


def test_train_and_val_have_the_same_classes(pets):
  train, val = opened(pets), opened(pets, 'val')
  assert train.class_names == val.class_names == ('ant', 'cat', 'dog')
  assert names(train) == {f'{pet}{i}.jpg': pet for pet in ('ant', 'cat', 'dog') for i in range(5)}
  assert names(val) == {f'v{pet}{i}.PNG': pet for pet in ('ant', 'cat', 'dog') for i in range(2)}
  assert names(opened(pets, 'validation')) == names(opened(f'{pets}:val')) == names(val)
  assert len(opened(pets, 'all')) == 21
  record = train[0]
  assert record.image == jpeg() and os.path.isfile(record.name)


def test_slice_has_all_classes(tmp_path):
  write(tmp_path, *(f'train/{c}/{i}.jpg' for c in 'abcd' for i in range(50)))
  first, rest = opened(tmp_path, 'train[:50%]'), opened(tmp_path, 'train[50%:]')
  assert len(first) == len(rest) == 100
  paths = [{source[i].name for i in range(100)} for source in (first, rest)]
  assert len(paths[0] | paths[1]) == 200
  counts = np.bincount([first[i].label for i in range(100)], minlength=4)
  assert counts.min() > 10


def test_added_files_move_no_other_between_train_and_val(tmp_path):
  files = [f'{c}/{i:03}.jpg' for c in ('x', 'y') for i in range(300)]
  write(tmp_path, *files)

  def paths(split, fraction=0.2):
    source = opened(tmp_path, split, val_fraction=fraction)
    return {os.path.relpath(source[i].name, tmp_path) for i in range(len(source))}

  train, val = paths('train'), paths('val')
  assert train | val == set(files) and not train & val
  for name in ('x', 'y'):
    assert 40 <= sum(path.startswith(name) for path in val) <= 80
  assert paths('val', 0.1) < val
  write(tmp_path, *(f'x/new{i}.jpg' for i in range(100)), 'z/one.jpg')
  assert train <= paths('train') and val <= paths('val')
  # A class is never only held out.
  assert 'z/one.jpg' in paths('train', 0.999)


def test_classes_of_a_checkpoint_are_matched_by_name(pets, caplog):
  order = ('dog', 'bee', 'cat', 'ant')
  val = opened(pets, 'val', class_names=order)
  assert val.class_names == order
  assert names(val) == names(opened(pets, 'val'))
  assert 'has no images of 1 classes: bee' in caplog.text
  with pytest.raises(UserError, match=r"class folder 'ant', which is not among the 2 classes"):
    opened(pets, 'val', class_names=('dog', 'cat'))


def test_val_alone_has_the_classes_of_a_checkpoint_or_its_own(tmp_path):
  write(tmp_path, 'val/b/1.jpg', 'val/a/1.jpg')
  assert opened(tmp_path, 'val', class_names=('a', 'b')).class_names == ('a', 'b')
  assert opened(tmp_path, 'val').class_names == ('a', 'b')
  with pytest.raises(UserError, match="has no split 'train'; it has val"):
    opened(tmp_path, 'train')


def test_class_that_training_lacks_is_an_error(pets):
  write(pets, 'val/bee/1.jpg')
  assert len(opened(pets)) == 15
  with pytest.raises(UserError, match="has the class folder 'bee', which is not among the 3 classes"):
    opened(pets, 'val')


def test_other_files_are_counted_in_one_warning(pets, caplog):
  (pets / 'train/.cache').mkdir()
  write(
    pets / 'train', 'cat/notes.txt', 'dog/a.csv', 'dog/.hidden.jpg', 'README', 'cat/cat1.txt'
  )  # the last is a caption
  assert len(opened(pets)) == len(opened(pets)) == 15
  (record,) = caplog.records  # one, although the folder was opened twice
  assert record.name == 'vit_jax.data.sources.folder'
  said = record.getMessage()
  assert 'train: ignored 2 files, most in ' in said and '(txt); jpg, jpeg, jfif, png, webp,' in said


def test_deep_folders_and_links_are_entered_once(tmp_path):
  write(tmp_path, 'train/a/deep/er/1.JPEG', 'elsewhere/2.Tiff', 'train/b/3.gif', 'train/b/4.BMP')
  (tmp_path / 'train/a/link').symlink_to(tmp_path / 'elsewhere')
  (tmp_path / 'train/a/deep/loop').symlink_to(tmp_path / 'train/a')
  assert len(opened(tmp_path)) == 4  # each once, despite the loop
  assert names(opened(tmp_path)) == {'1.JPEG': 'a', '2.Tiff': 'a', '3.gif': 'b', '4.BMP': 'b'}


def test_folder_without_images_in_class_folders_is_an_error(tmp_path):
  with pytest.raises(UserError, match='There is no folder'):
    opened(tmp_path / 'none')
  with pytest.raises(UserError, match='has no images in class sub-folders'):
    opened(tmp_path)
  write(tmp_path, 'loose.jpg')
  with pytest.raises(UserError, match='has no images in class sub-folders'):
    opened(tmp_path)
  write(tmp_path, 'cat/1.jpg')
  (tmp_path / 'dog').mkdir()
  with pytest.raises(UserError, match=r"Class folder 'dog' of .* has no images"):
    opened(tmp_path)
  with pytest.raises(UserError, match="has no split 'test'; it has train, val"):
    opened(tmp_path, 'test')


def test_file_that_vanished_is_named(pets):
  source = opened(pets)
  os.remove(source[3].name)
  with pytest.raises(UserError, match=r'cannot be read \(No such file'):
    source[3]


@pytest.mark.parametrize('count', [2, 5])
def test_tiny_folder_holds_out_one_image_of_each_class(tmp_path, caplog, count):
  """With data.val_fraction 0.1 the hashes of so few images may all lie above it, so that none is held out."""
  files = []
  for name in ('cat', 'dog', 'ant'):
    above = (file for file in (f'{name}/{name}{i}.jpg' for i in range(99)) if not is_held_out(file, 0.1))
    files += itertools.islice(above, count)
  write(tmp_path, *files, 'one/only.jpg')
  train = opened(tmp_path)
  assert 'val_fraction' not in caplog.text  # so recipes count images, also those of a run with data.fold
  val = opened(tmp_path, 'val')
  assert sorted(names(val).values()) == ['ant', 'cat', 'dog']
  assert sorted(set(names(train).values())) == ['ant', 'cat', 'dog', 'one']
  assert len(train) + len(val) == 3 * count + 1
  (message,) = [record.getMessage() for record in caplog.records if 'val_fraction' in record.getMessage()]
  assert '3 of 4 classes (' in message and 'would hold out none; one image of each' in message


def test_small_class_beside_a_large_one_is_held_out_too(tmp_path):
  files = [f'large/{i:03}.jpg' for i in range(60)]
  above = (file for file in (f'small/{i}.jpg' for i in range(99)) if not is_held_out(file, 0.1))
  write(tmp_path, *files, *itertools.islice(above, 5))
  held = {file for file in files if is_held_out(file, 0.1)}
  val = opened(tmp_path, 'val')
  found = {os.path.relpath(val[i].name, tmp_path) for i in range(len(val))}
  assert held and found - held <= {f'small/{i}.jpg' for i in range(99)} and len(found) == len(held) + 1


def test_folder_whose_fraction_holds_out_some_is_divided_by_the_fraction_alone(tmp_path):
  files = [f'{name}/{i:03}.jpg' for name in ('x', 'y') for i in range(40)]
  write(tmp_path, *files)
  held = {file for file in files if is_held_out(file, 0.1)}
  val = opened(tmp_path, 'val')
  assert {os.path.relpath(val[i].name, tmp_path) for i in range(len(val))} == held


def test_folder_of_single_images_trains_and_cannot_hold_any_out(tmp_path):
  write(tmp_path, 'cat/1.jpg', 'dog/1.jpg')
  assert len(opened(tmp_path)) == 2
  with pytest.raises(UserError, match=r'No class of .* has two images, so that none can be held out'):
    opened(tmp_path, 'val')


@pytest.mark.parametrize(
  ('files', 'said'),
  [
    (('train/000.tar.gz',), 'train has no images .* but 000.tar.gz; .*vit_jax prepare {root} ~/'),
    (('labels.csv', 'notes.txt'), 'but labels.csv; .*vit_jax prepare {root}/labels.csv ~/data'),
  ],
)
def test_folder_of_archives_or_tables_names_the_command_that_prepares_it(tmp_path, files, said):
  write(tmp_path, *files)
  with pytest.raises(UserError, match=said.format(root=tmp_path)):
    opened(tmp_path)


def test_class_names_that_are_not_utf8_are_text(tmp_path):
  """Class names are printed, drawn, and written to checkpoints and reports."""
  paths = (b'train/%b/%b.jpg' % (name, i) for name in (b'caf\xe9', b'tea') for i in (b'\xff', b'2'))
  write(tmp_path, *map(os.fsdecode, paths))
  source = opened(tmp_path)
  assert source.class_names == ('caf\\xe9', 'tea')
  assert ', '.join(source.class_names).encode() == b'caf\\xe9, tea'
  assert [len(source[i].image) for i in range(4)] == [len(jpeg())] * 4
  assert opened(tmp_path, class_names=('tea', 'caf\\xe9')).labels().tolist().count(1) == 2


def test_archives_beside_images_of_a_class_are_refused(tmp_path):
  write(tmp_path, 'a/1.jpg', 'b/1.jpg', 'b/more.zip')
  with pytest.raises(UserError, match=f'b has images and more.zip, .*vit_jax.prepare {tmp_path}/b/more.zip'):
    opened(tmp_path)
