import io
import logging
import os

import numpy as np
import pytest
from PIL import Image

from vit_jax import config
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError


def opened(root, split='train', **options):
  data = config.DataConfig(val_fraction=options.pop('val_fraction', 0.1))
  return open_source(f'folder:{root}', split, data=data, **options)


def jpeg():
  file = io.BytesIO()
  Image.new('RGB', (4, 4), 'red').save(file, 'jpeg')
  return file.getvalue()


def write(root, *paths):
  for path in paths:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(jpeg())


def names(source):
  """{path relative to the root: class}."""
  records = [source[i] for i in range(len(source))]
  return {os.path.basename(record.name): source.class_names[record.label] for record in records}


@pytest.fixture
def pets(tmp_path):
  write(tmp_path, *(f'train/{pet}/{pet}{i}.jpg' for pet in ('cat', 'dog', 'ant') for i in range(5)))
  write(tmp_path, *(f'val/{pet}/v{pet}{i}.PNG' for pet in ('cat', 'dog', 'ant') for i in range(2)))
  return tmp_path


def test_train_and_val(pets):
  train, val = opened(pets), opened(pets, 'val')
  assert train.class_names == val.class_names == ('ant', 'cat', 'dog')
  assert names(train) == {f'{pet}{i}.jpg': pet for pet in ('ant', 'cat', 'dog') for i in range(5)}
  assert names(val) == {f'v{pet}{i}.PNG': pet for pet in ('ant', 'cat', 'dog') for i in range(2)}
  assert names(opened(pets, 'validation')) == names(opened(f'{pets}:val')) == names(val)
  assert len(opened(pets, 'all')) == 21
  record = train[0]
  assert record.image == jpeg() and os.path.isfile(record.name)


def test_a_folder_named_validation_and_a_test_split(pets):
  (pets / 'val').rename(pets / 'validation')
  assert len(opened(pets, 'val')) == len(opened(pets, 'validation')) == 6
  write(pets, 'test/cat/t.webp')
  assert names(opened(pets, 'test')) == {'t.webp': 'cat'}
  write(pets, 'val/cat/x.jpg')
  with pytest.raises(UserError, match='both val/ and validation/'):
    opened(pets)


def test_a_slice_has_all_classes(tmp_path):
  write(tmp_path, *(f'train/{c}/{i}.jpg' for c in 'abcd' for i in range(50)))
  first, rest = opened(tmp_path, 'train[:50%]'), opened(tmp_path, 'train[50%:]')
  assert len(first) == len(rest) == 100
  paths = [{source[i].name for i in range(100)} for source in (first, rest)]
  assert len(paths[0] | paths[1]) == 200
  counts = np.bincount([first[i].label for i in range(100)], minlength=4)
  assert counts.min() > 10


def test_held_out_share(tmp_path):
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


def test_classes_of_a_checkpoint(pets, caplog):
  order = ('dog', 'bee', 'cat', 'ant')
  val = opened(pets, 'val', class_names=order)
  assert val.class_names == order
  assert names(val) == names(opened(pets, 'val'))
  assert 'has no images of 1 classes: bee' in caplog.text
  with pytest.raises(UserError, match=r"class folder 'ant', which is not among the 2 classes"):
    opened(pets, 'val', class_names=('dog', 'cat'))


def test_val_alone_needs_the_classes(tmp_path):
  write(tmp_path, 'val/b/1.jpg', 'val/a/1.jpg')
  assert opened(tmp_path, 'val', class_names=('a', 'b')).class_names == ('a', 'b')
  with pytest.raises(UserError):
    opened(tmp_path, 'val')
  with pytest.raises(UserError, match="has no split 'train'; it has val"):
    opened(tmp_path, 'train')


def test_class_missing_in_train(pets):
  write(pets, 'val/bee/1.jpg')
  assert len(opened(pets)) == 15
  with pytest.raises(
    UserError, match=r"\(val\) has the class folder 'bee', which is not among the 3 classes"
  ):
    opened(pets, 'val')


def test_class_missing_in_val_is_a_warning(pets, caplog):
  for file in (pets / 'val/dog').iterdir():
    file.unlink()
  with caplog.at_level(logging.WARNING):
    assert len(opened(pets, 'val')) == 4
  assert '(val) has no images of 1 classes: dog' in caplog.text


def test_other_files_are_counted(pets, caplog):
  (pets / 'train/cat/notes.txt').write_text('hello')
  (pets / 'train/dog/a.csv').write_text('hello')
  (pets / 'train/dog/.hidden.jpg').write_text('hello')
  (pets / 'train/.cache').mkdir()
  (pets / 'train/README').write_text('hello')
  assert len(opened(pets)) == 15
  assert 'ignored 2 files that are not images' in caplog.text


def test_deep_folders_links_and_extensions(tmp_path):
  write(tmp_path, 'train/a/deep/er/1.JPEG', 'elsewhere/2.Tiff', 'train/b/3.gif', 'train/b/4.BMP')
  (tmp_path / 'train/a/link').symlink_to(tmp_path / 'elsewhere')
  (tmp_path / 'train/a/deep/loop').symlink_to(tmp_path / 'train/a')
  assert len(opened(tmp_path)) == 4  # each once, in spite of the loop
  assert names(opened(tmp_path)) == {'1.JPEG': 'a', '2.Tiff': 'a', '3.gif': 'b', '4.BMP': 'b'}


def test_wrong_folders(tmp_path):
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


def test_file_that_vanished(pets):
  source = opened(pets)
  os.remove(source[3].name)
  with pytest.raises(UserError, match=r'cannot be read \(No such file'):
    source[3]
