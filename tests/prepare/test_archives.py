"""Tars and zips: what is in them, and what becomes of damaged ones."""

import collections
import gzip
import random
import tarfile

import pytest
from made_sources import PICTURE, add, tar_around, tar_of, zip_of

from vit_jax.foundation.errors import UserError
from vit_jax.prepare import archives, images, shard_plan
from vit_jax.prepare.listing import Listing

_BLOCK = 512
_MEMBER = _BLOCK + -(-len(PICTURE) // _BLOCK) * _BLOCK  # bytes of a tar for one image: header and content


def cut_tar(path, *names, members=1):
  """A tar that was cut off right after its first members."""
  whole = tar_of(path, *names).read_bytes()
  path.write_bytes(whole[: members * _MEMBER])
  return path


def names(path, **options):
  return [member.name for member in archives.members(str(path), **options)]


def test_members_of_a_tar_within_a_tar_are_read_in_place(tmp_path):
  inner = [tar_of(tmp_path / f'{name}.tar', f'{name}_1.JPEG', f'{name}_2.JPEG') for name in ('n01', 'n02')]
  outer = str(tar_around(tmp_path / 'all.tar', *inner))
  found = list(archives.members(outer))
  assert [(member.name, member.folder) for member in found] == [
    (f'{name}/{name}_{i}.JPEG', name) for name in ('n01', 'n02') for i in (1, 2)
  ]
  for member in found:
    assert archives.read(outer, member.location, member.size) == PICTURE


def test_folders_of_tars_nested_twice_are_joined(tmp_path):
  inner = tar_of(tmp_path / 'a.tar', 'x/1.jpg')
  outer = tar_around(tmp_path / 'c.tar', tar_around(tmp_path / 'b.tar', inner))
  (member,) = archives.members(str(outer))
  assert (member.name, member.folder) == ('b/a/x/1.jpg', 'b/a')


def test_links_and_devices_in_a_tar_are_left_out(tmp_path):
  path = tmp_path / 'x.tar'
  with tarfile.open(path, 'w') as tar:
    add(tar, 'a/1.jpg')
    for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)):
      info = tarfile.TarInfo(f'a/link{number}.jpg')
      info.type, info.linkname = kind, '/etc/passwd'
      tar.addfile(info)
  assert names(path) == ['a/1.jpg']


@pytest.mark.parametrize('nested', [False, True])
def test_tar_damaged_in_the_middle_is_an_error(tmp_path, nested):
  """Python's tarfile takes it for a tar that ends there."""
  path = tar_of(tmp_path / 'x.tar', *(f'a/{i}.jpg' for i in range(9)))
  content = bytearray(path.read_bytes())
  content[content.index(b'a/4.jpg') + 1] ^= 1
  path.write_bytes(content)
  if nested:
    path = tar_around(tmp_path / 'outer.tar', path)
  with pytest.raises(
    UserError, match=r'tar cannot be read as an archive \(damaged at byte \d+\); restore it'
  ):
    names(path)


def test_tar_cut_within_a_member_is_an_error(tmp_path):
  path = tar_of(tmp_path / 'cut.tar', *(f'a/{i}.jpg' for i in range(50)))
  whole = path.read_bytes()
  path.write_bytes(whole[: len(whole) // 2 + 300])
  for allow_cut in (False, True):
    with pytest.raises(UserError, match=r'cut.tar cannot be read as an archive'):
      names(path, allow_cut=allow_cut)


def test_tar_cut_between_two_members_is_an_error_unless_that_is_allowed(tmp_path, caplog):
  path = cut_tar(tmp_path / 'x.tar', 'a/1.jpg', 'a/2.jpg')
  with pytest.raises(
    UserError, match=r'x.tar cannot be read as an archive \(cut short at byte \d+.*--bad_images=skip'
  ):
    names(path)
  assert names(path, allow_cut=True) == ['a/1.jpg']
  assert f'{path} was cut short; files that were behind byte {_MEMBER} are left out' in caplog.text


@pytest.mark.parametrize('inner_names', [['a/1.jpg'], ['a/1.jpg', 'a/3.jpg']])
def test_cut_tar_within_a_tar_ends_where_it_ends(tmp_path, inner_names, caplog):
  """tarfile would go on with the outer tar's members."""
  outer = tar_around(tmp_path / 'outer.tar', cut_tar(tmp_path / 'cut.tar', *inner_names))
  with tarfile.open(outer, 'a') as tar:
    add(tar, 'b/2.jpg')
  with pytest.raises(UserError, match=r'outer.tar cannot be read as an archive \(cut short at byte'):
    names(outer)
  assert names(outer, allow_cut=True) == ['cut/a/1.jpg', 'b/2.jpg']
  assert 'outer.tar/cut.tar was cut short' in caplog.text


@pytest.mark.parametrize('mode', ['gz', 'bz2', 'xz'])
def test_compressed_tars_are_decompressed_and_damaged_ones_refused(tmp_path, mode):
  path = tmp_path / f'x.tar.{mode}'
  with tarfile.open(path, f'w:{mode}') as tar:
    add(tar, 'a/1.jpg', 'b/2.jpg')
  tar = archives.decompressed(str(path), str(tmp_path / 'work'))
  assert tar != str(path) and names(tar) == ['a/1.jpg', 'b/2.jpg']
  assert archives.decompressed(tar, str(tmp_path / 'work')) == tar
  whole = path.read_bytes()
  for damaged in (whole[:-20], whole[:20] + bytes(20) + whole[40:]):
    path.write_bytes(damaged)
    with pytest.raises(UserError, match='cannot be decompressed'):
      archives.decompressed(str(path), str(tmp_path / 'work'))


def test_any_damage_of_an_archive_is_named(tmp_path):
  """A damaged archive is still one, or an error names it; a damaged image in it is named."""
  members = [f'{"ab"[i % 2]}/{"long" * (30 if i == 3 else 1)}{i}.jpg' for i in range(6)]
  tar, archive = tar_of(tmp_path / '1', *members), zip_of(tmp_path / '2', *members)
  whole = [tar.read_bytes(), archive.read_bytes(), gzip.compress(tar.read_bytes())]
  rng, outcomes = random.Random(0), collections.Counter()
  for attempt in range(300):
    damaged = bytearray(whole[attempt % 3])
    for _ in range(rng.randrange(1, 20)):
      damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    if attempt % 2:
      del damaged[rng.randrange(len(damaged)) :]
    (tmp_path / 'damaged').write_bytes(damaged)
    archives._opened_zip.cache_clear()
    try:
      for image in Listing(str(tmp_path / 'damaged'), tmp_path, str(tmp_path / 'work')):
        item = shard_plan.Item(image.name, image.path, image.location, image.size, [0])
        try:
          images.load(item, images.Shrinking())
          outcomes['good'] += 1
        except UserError as error:
          assert str(error).startswith(image.name)
          outcomes['bad'] += 1
    except UserError as error:
      assert str(error).startswith(f'{tmp_path}/damaged')
      outcomes['refused'] += 1
  assert min(outcomes.values()) > 30 and len(outcomes) == 3
