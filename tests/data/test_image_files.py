import os

import pytest

from vit_jax.data.image_files import image_files
from vit_jax.foundation.errors import UserError

NO_UTF8 = os.fsdecode(b'deep/\xff.jpg')


@pytest.fixture
def folder(tmp_path):
  for name in ('b.jpg', 'a.PNG', 'deep/c.webp', 'notes.txt', '.hidden.jpg', '.git/d.png', NO_UTF8):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
  return tmp_path


def test_folder_stands_for_the_sorted_images_below_it(folder):
  expected = [folder / name for name in ('a.PNG', 'b.jpg', 'deep/c.webp', NO_UTF8)]
  assert image_files([str(folder)]) == expected
  notes, hidden = folder / 'notes.txt', folder / '.hidden.jpg'
  assert image_files([str(notes), str(folder), str(hidden)]) == [notes, *expected, hidden]


def test_missing_file_and_folder_without_images_are_named(folder):
  with pytest.raises(UserError, match=r'There is no image .*none\.jpg; check the path'):
    image_files([str(folder / 'none.jpg')])
  with pytest.raises(UserError, match=r'There is no image .*b\.jpg/c; check the path'):
    image_files([str(folder / 'b.jpg/c')])
  (folder / 'empty').mkdir()
  with pytest.raises(UserError, match=r'There are no images below .*empty; check the folder'):
    image_files([str(folder / 'empty')])


def test_pipe_does_not_hang(folder):
  os.mkfifo(folder / 'deep/pipe.png')
  assert folder / 'deep/pipe.png' not in image_files([str(folder)])
  with pytest.raises(UserError, match=r'pipe\.png is not a regular file'):
    image_files([str(folder / 'deep/pipe.png')])
