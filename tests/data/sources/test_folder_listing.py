"""Folders of images, listed once: kept, and listed again when something changed."""

import os

import pytest

from vit_jax.data.sources import folder_listing
from vit_jax.errors import UserError


@pytest.fixture
def scans(monkeypatch, tmp_path):
  """The folders that were really listed; few images are kept too, in a cache of the test's own."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(folder_listing, '_WORTH_KEEPING', 1)
  calls = []
  scan = folder_listing._scan
  monkeypatch.setattr(folder_listing, '_scan', lambda root, tops: calls.append(tops) or scan(root, tops))
  return calls


@pytest.fixture
def root(tmp_path):
  root = tmp_path / 'images'
  for path in (
    'train/a/1.jpg',
    'train/a/deep/2.PNG',
    'train/b/3.jpg',
    'train/b/notes.txt',
    'train/no.jpg',
    'val/a/4.jpg',
  ):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).touch()
  (tmp_path / 'elsewhere').mkdir()
  (tmp_path / 'elsewhere/5.jpg').touch()
  (root / 'train/b/link').symlink_to(tmp_path / 'elsewhere')
  settle(tmp_path)
  return root


def settle(path):
  """As if nothing had changed for an hour."""
  for folder, _, _ in os.walk(path):
    os.utime(folder, times=(0, os.stat(folder).st_mtime - 3600))


def paths(root, *tops):
  found = folder_listing.list_images(root, tops)
  return [found.path(number) for number in range(len(found))]


ALL = ['train/a/1.jpg', 'train/a/deep/2.PNG', 'train/b/3.jpg', 'train/b/link/5.jpg']


def test_a_kept_listing_is_the_same(root, scans):
  first = folder_listing.list_images(root, ['train'])
  again = folder_listing.list_images(root, ['train'])
  assert len(scans) == 1
  assert [first.path(i) for i in range(4)] == [again.path(i) for i in range(4)] == ALL
  assert first.folders == again.folders == ('train', 'train/a', 'train/a/deep', 'train/b', 'train/b/link')
  assert again.others.tolist() == [0, 0, 0, 1, 0]
  assert again.hashes.tolist() == [folder_listing.path_hash(path) for path in ALL]
  assert paths(root, 'train', 'val') == [*ALL, 'val/a/4.jpg'] and len(scans) == 2
  assert paths(root / 'train', '') == [path.removeprefix('train/') for path in ALL]


@pytest.mark.parametrize(
  ('change', 'expected'),
  [
    (lambda root: (root / 'train/a/deep/new.jpg').touch(), {*ALL, 'train/a/deep/new.jpg'}),
    (lambda root: (root / 'train/a/1.jpg').unlink(), {*ALL} - {'train/a/1.jpg'}),
    (
      lambda root: (root / 'train/b/3.jpg').rename(root / 'train/b/9.jpg'),
      {*ALL, 'train/b/9.jpg'} - {ALL[2]},
    ),
    (lambda root: (root / 'train/c/deep').mkdir(parents=True), {*ALL}),
    (lambda root: (root / '../elsewhere/6.jpg').touch(), {*ALL, 'train/b/link/6.jpg'}),
    (lambda root: (root / 'train/b').rename(root / 'train/z'), {p.replace('/b/', '/z/') for p in ALL}),
  ],
  ids=['added', 'removed', 'renamed', 'new class', 'behind a link', 'class renamed'],
)
def test_changes_are_seen(root, scans, change, expected):
  paths(root, 'train')
  change(root)
  assert set(paths(root, 'train')) == expected
  assert len(scans) == 2


def test_a_folder_that_just_changed_is_not_trusted(root, scans):
  """A second change could come within the resolution of its time."""
  (root / 'train/a/new.jpg').touch()
  paths(root, 'train')
  paths(root, 'train')
  assert len(scans) == 2


def test_a_cache_that_fails_is_done_without(root, scans, tmp_path, monkeypatch, caplog):
  paths(root, 'train')
  (kept,) = (tmp_path / 'cache/vit_jax/folders').iterdir()
  for content in (kept.read_bytes()[:-100], b'', b'PK'):
    kept.write_bytes(content)
    assert paths(root, 'train') == ALL
  assert len(scans) == 4
  (tmp_path / 'file').touch()
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  assert paths(root, 'train') == ALL
  assert 'is not kept for the next run ([Errno 20] Not a directory' in caplog.text


def test_names_that_are_no_text(root, scans):
  os.close(os.open(os.fsencode(root) + b'/train/a/\xff\xe9.jpg', os.O_CREAT))
  settle(root)
  for _ in range(2):
    assert b'train/a/\xff\xe9.jpg' in [os.fsencode(path) for path in paths(root, 'train')]
  assert len(scans) == 1


def test_a_folder_that_cannot_be_read(root, scans):
  (root / 'train/a/loop').symlink_to(root / 'train/a/loop')
  with pytest.raises(UserError, match=r'train/a cannot be read \(Too many levels of symbolic links\)'):
    paths(root, 'train')
