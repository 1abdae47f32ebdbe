import collections
import gzip
import io
import json
import random
import tarfile
import zipfile

import numpy as np
import pytest
from image_bytes import jpeg

from vit_jax.errors import UserError
from vit_jax.prepare import archives, images, sharding
from vit_jax.prepare.inputs import Image, Listing

PICTURE = jpeg(np.zeros((4, 4, 3)))


@pytest.fixture
def listed(tmp_path):
  """listed(source): {name: (split, labels)}; a name twice is an error."""

  def run(source):
    scratch = tmp_path / 'scratch'
    scratch.mkdir(exist_ok=True)
    images = list(Listing(str(source), scratch, str(tmp_path / 'work')))
    assert len({image.name for image in images}) == len(images)
    return {image.name: (image.split, *image.labels) for image in images}

  return run


def folder_of(root, *names):
  for name in names:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(PICTURE)
  return root


def tar_of(path, *names):
  with tarfile.open(path, 'w') as tar:
    add(tar, *names)
  return path


def add(tar, *names):
  for name in names:
    info = tarfile.TarInfo(name)
    info.size = len(PICTURE)
    tar.addfile(info, io.BytesIO(PICTURE))


def zip_of(path, *names):
  with zipfile.ZipFile(path, 'w') as archive:
    for name in names:
      archive.writestr(name, PICTURE)
  return path


def make(kind, root, *names):
  return {'folder': folder_of, 'tar': tar_of, 'zip': zip_of}[kind](root, *names)


kinds = pytest.mark.parametrize('kind', ['folder', 'tar', 'zip'])


@kinds
def test_classes_alone(listed, tmp_path, kind):
  source = make(
    kind, tmp_path / 'x', 'b/1.jpg', 'a/2.PNG', 'a/deep/er/3.webp', 'a/notes.txt', '.hidden/4.jpg'
  )
  assert listed(source) == {
    'b/1.jpg': ('train', 'b'),
    'a/2.PNG': ('train', 'a'),
    'a/deep/er/3.webp': ('train', 'a'),
  }


@kinds
def test_splits(listed, tmp_path, kind, caplog):
  source = make(
    kind,
    tmp_path / 'x',
    'train/a/1.jpg',
    'validation/a/2.jpg',
    'test/b/3.jpg',
    'extra/c/4.jpg',
    'train/5.jpg',
  )
  assert listed(source) == {
    'train/a/1.jpg': ('train', 'a'),
    'validation/a/2.jpg': ('val', 'a'),
    'test/b/3.jpg': ('test', 'b'),
  }
  assert 'ignored 2 images in no class folder' in caplog.text
  both = make(kind, tmp_path / 'both', 'val/a/1.jpg', 'validation/a/2.jpg')
  with pytest.raises(UserError, match='has both val/ and validation/'):
    listed(both)


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
def test_folders_around_those_of_an_archive(listed, tmp_path, kind, names, expected):
  found = listed(make(kind, tmp_path / 'archive', *names))
  assert found == {name: ('train', label) for name, label in expected.items()}


def test_a_folder_is_taken_as_folder_sources_take_it(listed, tmp_path):
  # Nothing around the classes is passed over, and archives beside images are other files.
  source = folder_of(tmp_path / 'x', 'top/a/1.jpg', 'top/b/1.jpg')
  tar_of(source / 'backup.tar', 'a/1.jpg', 'b/1.jpg')
  assert listed(source) == {'top/a/1.jpg': ('train', 'top'), 'top/b/1.jpg': ('train', 'top')}


def test_tars_for_classes(listed, tmp_path):
  # As ImageNet comes: a tar with a tar for each class, or a folder of these.
  folder = tmp_path / 'folder/train'
  folder.mkdir(parents=True)
  for name in ('n01', 'n02'):
    tar_of(folder / f'{name}.tar', f'{name}_1.JPEG', f'{name}_2.JPEG')
  expected = {f'train/{n}/{n}_{i}.JPEG': ('train', n) for n in ('n01', 'n02') for i in (1, 2)}
  assert listed(tmp_path / 'folder') == expected
  outer = tmp_path / 'all.tar'
  with tarfile.open(outer, 'w') as tar:
    for path in sorted(folder.iterdir()):
      tar.add(path, path.name)
  assert listed(outer) == {name.removeprefix('train/'): value for name, value in expected.items()}
  for member in archives.members(str(outer)):
    assert archives.read(str(outer), member.within, member.size) == PICTURE


def test_a_tar_in_a_tar_ends_where_it_ends(tmp_path):
  inner = tar_of(tmp_path / 'inner.tar', 'a/1.jpg').read_bytes()
  (tmp_path / 'cut.tar').write_bytes(inner[: 512 + 1024])  # without the blocks that mark the end
  with tarfile.open(tmp_path / 'outer.tar', 'w') as tar:
    tar.add(tmp_path / 'cut.tar', 'cut.tar')
    add(tar, 'b/2.jpg')
  assert [m.name for m in archives.members(str(tmp_path / 'outer.tar'))] == ['cut/a/1.jpg', 'b/2.jpg']


@pytest.mark.parametrize('mode', ['gz', 'bz2', 'xz'])
def test_a_compressed_tar(listed, tmp_path, mode):
  path = tmp_path / f'x.tar.{mode}'
  with tarfile.open(path, f'w:{mode}') as tar:
    add(tar, 'a/1.jpg', 'b/2.jpg')
  assert listed(path) == {'a/1.jpg': ('train', 'a'), 'b/2.jpg': ('train', 'b')}
  whole = path.read_bytes()
  for damaged in (whole[:-20], whole[:20] + bytes(20) + whole[40:]):
    path.write_bytes(damaged)
    with pytest.raises(UserError, match='cannot be decompressed'):
      listed(path)


def test_links_and_devices_of_a_tar_are_no_files(listed, tmp_path):
  path = tmp_path / 'x.tar'
  with tarfile.open(path, 'w') as tar:
    add(tar, 'a/1.jpg')
    for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)):
      info = tarfile.TarInfo(f'a/link{number}.jpg')
      info.type, info.linkname = kind, '/etc/passwd'
      tar.addfile(info)
  assert list(listed(path)) == ['a/1.jpg']


def test_csv(listed, tmp_path):
  (tmp_path / 'labels.csv').write_text(
    '\ufeffimage,label,split,note\n'
    'a.jpg,cat,train,x\n"b,c.jpg",dog,validation,y\n/elsewhere/d.jpg,"tench, Tinca tinca",extra,\n',
  )
  assert listed(tmp_path / 'labels.csv') == {
    'a.jpg': ('train', 'cat'),
    'b,c.jpg': ('val', 'dog'),
    '/elsewhere/d.jpg': ('extra', 'tench, Tinca tinca'),
  }


def test_csv_with_several_labels_and_without_splits(listed, tmp_path):
  (tmp_path / 'x.csv').write_text('image,label\na.jpg,cat;dog\nb.jpg,\ntrain/c.jpg, dog | cat|dog \n')
  assert listed(tmp_path / 'x.csv') == {
    'a.jpg': ('train', 'cat', 'dog'),
    'b.jpg': ('train',),
    'train/c.jpg': ('train', 'dog', 'cat'),
  }


def test_where_the_images_of_a_csv_are(tmp_path):
  (tmp_path / 'x.csv').write_text('image,label\na/../b.jpg,1\n/c.jpg,1\ns3://d/e.jpg,1\n')
  (tmp_path / 'b.jpg').write_bytes(PICTURE)
  (tmp_path / 's').mkdir()
  first, second, third = Listing(str(tmp_path / 'x.csv'), tmp_path / 's', '')
  assert first == Image('b.jpg', str(tmp_path / 'b.jpg'), None, len(PICTURE), 'train', ['1'])
  assert (second.path, second.size) == ('/c.jpg', None)
  assert (third.name, third.path, third.size) == ('s3://d/e.jpg', 's3://d/e.jpg', None)


def test_hugging_face_folders(listed, tmp_path):
  whole = folder_of(tmp_path / 'whole', 'train/1.png', 'test/2.png', '3.png')
  (whole / 'metadata.csv').write_text('file_name,label\ntrain/1.png,7\ntest/2.png,9\n3.png,7\n')
  expected = {'train/1.png': ('train', '7'), 'test/2.png': ('test', '9'), '3.png': ('train', '7')}
  assert listed(whole) == expected

  parts = folder_of(tmp_path / 'parts', 'train/sub/1.png', 'validation/2.png')
  rows = [{'file_name': 'sub/1.png', 'labels': ['a', 'b'], 'text': 'x'}, {'file_name': '3.png', 'labels': []}]
  (parts / 'train/metadata.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  (parts / 'validation/metadata.jsonl').write_text('{"file_name": "2.png", "labels": "b|c"}\n')
  assert listed(parts) == {
    'train/sub/1.png': ('train', 'a', 'b'),
    'train/3.png': ('train',),
    'validation/2.png': ('val', 'b', 'c'),
  }


def test_order_of_classes(tmp_path):
  tar_of(tmp_path / 'x.tar', '10/1.jpg', '9/1.jpg')
  (tmp_path / 'x.csv').write_text('image,label\na.jpg,10\nb.jpg,9\n')
  folders, table = (Listing(str(tmp_path / f'x.{kind}'), tmp_path, str(tmp_path)) for kind in ('tar', 'csv'))
  assert folders.sorted_classes({'9', '10'}) == ['10', '9']
  assert table.sorted_classes({'9', '10', '09'}) == ['09', '9', '10']
  assert table.sorted_classes({'9', '10', 'x'}) == ['10', '9', 'x']


@pytest.mark.parametrize(
  'text,message',
  [
    ('picture,label\na.jpg,x\n', "line 2 has no column 'image' or 'file_name', but picture, label; rename"),
    ('image,class\na.jpg,x\n', "line 2 has no column 'label' or 'labels', but image, class; rename"),
    ('image,label\n,x\n', 'line 2 has no path of an image'),
    ('image,label,split\na.jpg,x,my split\n', "line 2 has the split 'my split'; write train, val, test"),
    ('image,label,split\na.jpg,x,all\n', "line 2 has the split 'all'"),
    ('image,label\na.jpg,\xff\n', 'cannot be read near line 1'),
  ],
)
def test_wrong_csv(listed, tmp_path, text, message):
  (tmp_path / 'x.csv').write_text(text, encoding='latin-1')
  with pytest.raises(UserError, match=message):
    listed(tmp_path / 'x.csv')


@pytest.mark.parametrize(
  'text,message',
  [
    ('{"file_name": "a.jpg", "label": 1}\n{"file_name', r'metadata.jsonl cannot be read near line 2'),
    ('[1]', 'cannot be read near line 1 .it is not an object'),
    ('{"file_name": "a.jpg", "label": {"x": 1}}', 'line 1 has the label'),
    (
      '{"file_name": "../../etc/a.jpg", "label": 1}',
      'line 1 names ../../etc/a.jpg, which is not below its folder',
    ),
    ('{"file_name": "a.jpg", "label": 1, "split": ["x"]}', r"line 1 has the split \['x'\]"),
    ('{"file_name": "/etc/a.jpg", "label": 1}', 'which is not below its folder'),
    ('{"file_name": "gs://b/a.jpg", "label": 1}', 'which is not below its folder'),
  ],
)
def test_wrong_metadata(listed, tmp_path, text, message):
  (tmp_path / 'x').mkdir()
  (tmp_path / 'x/metadata.jsonl').write_text(text)
  with pytest.raises(UserError, match=message):
    listed(tmp_path / 'x')


def test_wrong_sources(listed, tmp_path):
  with pytest.raises(
    UserError, match=r'There is no .*none; give a folder, a tar or zip archive, or a .csv file'
  ):
    listed(tmp_path / 'none')
  (tmp_path / 'file.txt').write_text('hello')
  with pytest.raises(UserError, match=r'file.txt is neither a tar nor a zip'):
    listed(tmp_path / 'file.txt')
  with pytest.raises(UserError, match='has no images in class folders'):
    listed(tar_of(tmp_path / 'flat.tar', '1.jpg', '2.jpg'))
  (tmp_path / 'empty').mkdir()
  with pytest.raises(UserError, match='has no images in class folders'):
    listed(tmp_path / 'empty')
  whole = tar_of(tmp_path / 'whole.tar', *(f'a/{i}.jpg' for i in range(50))).read_bytes()
  (tmp_path / 'cut.tar').write_bytes(whole[: len(whole) // 2 + 300])
  with pytest.raises(UserError, match=r'cut.tar cannot be read as an archive'):
    listed(tmp_path / 'cut.tar')


@pytest.mark.parametrize('nested', [False, True])
def test_a_tar_damaged_in_the_middle(listed, tmp_path, nested):
  """Python's tarfile takes it for one that ends there."""
  content = bytearray(tar_of(tmp_path / 'x.tar', *(f'a/{i}.jpg' for i in range(9))).read_bytes())
  content[content.index(b'a/4.jpg') + 1] ^= 1
  (tmp_path / 'x.tar').write_bytes(content)
  source = tmp_path / 'x.tar'
  if nested:
    source = tmp_path / 'outer.tar'
    with tarfile.open(source, 'w') as tar:
      tar.add(tmp_path / 'x.tar', 'x.tar')
      add(tar, 'b/1.jpg')
  with pytest.raises(
    UserError, match=r'tar cannot be read as an archive \(damaged at byte \d+\); restore it'
  ):
    listed(source)


def test_a_tar_cut_between_two_files(listed, tmp_path, caplog):
  content = tar_of(tmp_path / 'x.tar', 'a/1.jpg', 'a/2.jpg').read_bytes()
  (tmp_path / 'x.tar').write_bytes(content[: 512 + -(-len(PICTURE) // 512) * 512])
  assert list(listed(tmp_path / 'x.tar')) == ['a/1.jpg']
  assert 'x.tar has no mark of its end; perhaps it was cut short' in caplog.text


def test_any_damage_of_an_archive_is_said(tmp_path):
  """It is an archive still, or an error names it; a damaged image in it is named."""
  names = [f'{"ab"[i % 2]}/{"long" * (30 if i == 3 else 1)}{i}.jpg' for i in range(6)]
  tar, archive = tar_of(tmp_path / '1', *names), zip_of(tmp_path / '2', *names)
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
        item = sharding.Item(image.name, image.path, image.within, image.size, [0])
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
