"""Tars and zips: what is in them, and what becomes of damaged ones."""

import tarfile

import pytest
from made_sources import PICTURE, add, tar_around, tar_of

from vit_jax.foundation.errors import UserError
from vit_jax.prepare import archives, storage

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
  (tmp_path / 'around').mkdir()
  (member, *_) = archives.members(str(tar_around(tmp_path / 'around/c.tar', tmp_path / 'all.tar')))
  assert (member.name, member.folder) == ('all/n01/n01_1.JPEG', 'all/n01')


def tar_with(path, *others):
  """A tar of an image and of members without content: (name, type), of which links point at /etc/passwd."""
  with tarfile.open(path, 'w') as tar:
    add(tar, 'a/1.jpg')
    for name, kind in others:
      info = tarfile.TarInfo(name)
      info.type, info.linkname = kind, '/etc/passwd'
      tar.addfile(info)
  return path


def test_devices_and_links_to_what_is_no_image_are_left_out(tmp_path):
  kinds = (tarfile.CHRTYPE, tarfile.FIFOTYPE)
  others = [(f'a/{number}.jpg', kind) for number, kind in enumerate(kinds)]
  links = [('README.md', tarfile.SYMTYPE), ('a/._2.jpg', tarfile.SYMTYPE)]
  assert names(tar_with(tmp_path / 'x.tar', *others, *links)) == ['a/1.jpg']


@pytest.mark.parametrize('kind', [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize('name', ['a/2.jpg', 'val'])
def test_links_to_images_and_to_what_may_be_a_folder_of_them_are_refused(name, kind, tmp_path):
  with pytest.raises(UserError, match=rf'x.tar has {name} as a link .*; pack it with `tar --dereference'):
    names(tar_with(tmp_path / 'x.tar', (name, kind)))


@pytest.mark.parametrize('nested', [False, True])
def test_tar_damaged_in_the_middle_is_an_error(tmp_path, nested):
  """Python's tarfile takes it for a tar that ends there."""
  path = tar_of(tmp_path / 'x.tar', *(f'a/{i}.jpg' for i in range(9)))
  content = bytearray(path.read_bytes())
  content[content.index(b'a/4.jpg') + 1] ^= 1
  path.write_bytes(content)
  if nested:
    path = tar_around(tmp_path / 'outer.tar', path)
  with pytest.raises(UserError, match=r'tar cannot be read as an archive \(damaged at byte \d+\)'):
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
  with pytest.raises(UserError, match=r'cannot be read .* \(cut short at byte \d+.*--bad_images=skip'):
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


def test_parquet_files_beside_tars_are_told_by_one_listing_of_their_folder(tmp_path, monkeypatch):
  """A data set of img2dataset has ten thousand of them, and in a bucket each question is a request."""
  files = [f'part/{number:05}.{ending}' for number in range(9) for ending in ('parquet', 'tar')]
  (tmp_path / 'part').mkdir()
  for file in files:
    (tmp_path / file).touch()
  listings, names_of = [], storage.names
  monkeypatch.setattr(storage, 'names', lambda folder: (listings.append(folder), names_of(folder))[1])
  monkeypatch.setattr(storage, 'exists', None)
  found = [name for name, _ in archives.data_files(str(tmp_path), '.tar')]
  assert found == files[1::2] and listings == [str(tmp_path / 'part')]
  assert archives.first_data(str(tmp_path)) == str(tmp_path / files[1])
