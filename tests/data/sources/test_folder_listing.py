"""Folders of images are listed once, and listed again when something changed."""

import os
import time

import pytest

from vit_jax.data.sources import folder_listing
from vit_jax.foundation.errors import UserError

ALL = ['train/a/1.jpg', 'train/a/deep/2.PNG', 'train/b/3.jpg', 'train/b/link/5.jpg']


@pytest.fixture
def scans(monkeypatch, tmp_path):
  """A list that grows with each listing made; a few images, changed just now, are worth keeping too."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(folder_listing, '_WORTH_KEEPING', 1)
  monkeypatch.setattr(folder_listing, '_SETTLED_NS', 0)
  calls = []
  scan = folder_listing._scan

  def counted(root, tops):
    calls.append(tops)
    return scan(root, tops)

  monkeypatch.setattr(folder_listing, '_scan', counted)
  return calls


@pytest.fixture
def root(tmp_path):
  root = tmp_path / 'images'
  for path in (*ALL[:3], 'train/b/notes.txt', 'train/no.jpg', 'val/a/4.jpg'):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).touch()
  (tmp_path / 'elsewhere').mkdir()
  (tmp_path / 'elsewhere/5.jpg').touch()
  (root / 'train/b/link').symlink_to(tmp_path / 'elsewhere')
  settle()
  return root


def settle():
  """Lets the clock of the file system's times go on, which ticks every few milliseconds."""
  time.sleep(0.03)


def paths(root, *tops):
  found = folder_listing.list_images(root, tops)
  return [found.path(number) for number in range(len(found))]


def test_kept_listing_is_the_same(root, scans):
  first = folder_listing.list_images(root, ['train'])
  again = folder_listing.list_images(root, ['train'])
  assert len(scans) == 1
  assert [first.path(i) for i in range(4)] == [again.path(i) for i in range(4)] == ALL
  assert first.folders == again.folders == ('train', 'train/a', 'train/a/deep', 'train/b', 'train/b/link')
  assert again.others.tolist() == [0, 0, 0, 1, 0]
  assert again.hashes.tolist() == [folder_listing.path_hash(path) for path in ALL]
  assert paths(root, 'train', 'val') == [*ALL, 'val/a/4.jpg'] and len(scans) == 2
  assert paths(root / 'train', '') == [path.removeprefix('train/') for path in ALL]


CHANGES = {
  'an image more': (lambda root: (root / 'train/a/deep/new.jpg').touch(), {*ALL, 'train/a/deep/new.jpg'}),
  'an image less': (lambda root: (root / 'train/a/1.jpg').unlink(), {*ALL} - {'train/a/1.jpg'}),
  'an image renamed': (
    lambda root: (root / 'train/b/3.jpg').rename(root / 'train/b/9.jpg'),
    {*ALL, 'train/b/9.jpg'} - {'train/b/3.jpg'},
  ),
  'a class more': (lambda root: (root / 'train/c/deep').mkdir(parents=True), {*ALL}),
  'one behind a link': (lambda root: (root / '../elsewhere/6.jpg').touch(), {*ALL, 'train/b/link/6.jpg'}),
  'a class renamed': (
    lambda root: (root / 'train/b').rename(root / 'train/z'),
    {path.replace('/b/', '/z/') for path in ALL},
  ),
}


@pytest.mark.parametrize(('change', 'expected'), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize('times', ['as they are', 'put back'])
def test_change_is_noticed(root, scans, change, expected, times):
  """Also where all times of modification are put back afterwards, as rsync and tar do."""
  folders = [path for path in root.parent.rglob('*') if path.is_dir() and 'cache' not in path.parts]
  before = {path: path.stat().st_mtime_ns for path in folders}
  paths(root, 'train')
  change(root)
  for path, mtime in before.items():
    if times == 'put back' and path.exists():
      os.utime(path, ns=(mtime, mtime))
  assert set(paths(root, 'train')) == expected
  assert len(scans) == 2


def test_folder_that_just_changed_is_not_kept(root, scans, monkeypatch):
  """A second change could get the same time."""
  monkeypatch.setattr(folder_listing, '_SETTLED_NS', 60 * 10**9)
  paths(root, 'train')
  paths(root, 'train')
  assert len(scans) == 2


def test_names_that_are_not_utf8_are_kept(root, scans):
  os.close(os.open(os.fsencode(root) + b'/train/a/\xff\xe9.jpg', os.O_CREAT))
  settle()
  for _ in range(2):
    assert b'train/a/\xff\xe9.jpg' in [os.fsencode(path) for path in paths(root, 'train')]
  assert len(scans) == 1


def test_pipes_are_not_listed(root, scans):
  """Opening one would wait for ever."""
  os.mkfifo(root / 'train/a/pipe.png')
  (root / 'train/a/link.png').symlink_to(root / 'train/a/pipe.png')
  assert paths(root, 'train') == ALL
  below = {os.path.basename(path) for path in folder_listing.files_below(root / 'train/a')}
  assert below == {'1.jpg', '2.PNG'}


def test_broken_link_is_listed_so_that_reading_it_names_it(root, scans):
  (root / 'train/a/lost.png').symlink_to(root / 'nowhere.png')
  assert 'train/a/lost.png' in paths(root, 'train')


def test_unreadable_folder_is_named(root, scans, monkeypatch):
  (root / 'train/a/loop').symlink_to(root / 'train/a/loop')
  with pytest.raises(UserError, match=r'train/a cannot be read \(Too many levels of symbolic links\)'):
    paths(root, 'train')
  with pytest.raises(UserError, match=r'none cannot be read \(No such file or directory\)'):
    folder_listing.folders_in(root / 'none')
