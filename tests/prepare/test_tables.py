"""Tables: which images they name, in which split and with which labels."""

import json
import os

import pytest
from made_sources import PICTURE, folder_of

from vit_jax.errors import UserError
from vit_jax.prepare.listing import Listing
from vit_jax.prepare.source_image import SourceImage
from vit_jax.prepare.tables import Columns


def test_csv_has_an_image_a_label_and_a_split_in_each_line(listed, tmp_path):
  (tmp_path / 'labels.csv').write_text(
    '\ufeffimage,label,split,note\n'
    'a.jpg,cat,train,x\n"b,c.jpg",dog,validation,y\n/elsewhere/d.jpg,"tench, Tinca tinca",extra,\n',
  )
  assert listed(tmp_path / 'labels.csv') == {
    'a.jpg': ('train', 'cat'),
    'b,c.jpg': ('val', 'dog'),
    '/elsewhere/d.jpg': ('extra', 'tench, Tinca tinca'),
  }


def test_names_without_ending_and_folder_are_found_in_the_one_folder_that_has_them(listed, tmp_path):
  """As Kaggle's tables have them: `id` is a file of train/, without '.jpg'."""
  folder_of(tmp_path, 'train/a.jpg', 'train/b.jpg', 'test/c.jpg')
  (tmp_path / 'x.csv').write_text('id;breed\na;cat\nb;dog\n')
  expected = {'train/a.jpg': ('train', 'cat'), 'train/b.jpg': ('train', 'dog')}
  assert listed(tmp_path / 'x.csv', columns=Columns(label='breed')) == expected
  folder_of(tmp_path, 'test/a.jpg')
  assert listed(tmp_path / 'x.csv', columns=Columns(label='breed')).keys() == {
    'a',
    'b',
  }  # which of the two is meant?


def test_a_cell_may_have_several_labels(listed, tmp_path):
  (tmp_path / 'x.csv').write_text('image,label\na.jpg,cat;dog\nb.jpg,\ntrain/c.jpg, dog | cat|dog \n')
  assert listed(tmp_path / 'x.csv') == {
    'a.jpg': ('train', 'cat', 'dog'),
    'b.jpg': ('train',),
    'train/c.jpg': ('train', 'dog', 'cat'),
  }


def test_paths_are_relative_to_the_table_absolute_or_addresses(tmp_path):
  (tmp_path / 'x.csv').write_text('image,label\na/../b.jpg,1\n/c.jpg,1\ns3://d/e.jpg,1\n')
  (tmp_path / 'b.jpg').write_bytes(PICTURE)
  (tmp_path / 's').mkdir()
  first, second, third = Listing(str(tmp_path / 'x.csv'), tmp_path / 's', '')
  assert first == SourceImage('b.jpg', str(tmp_path / 'b.jpg'), None, len(PICTURE), 'train', ['1'], [])
  assert (second.path, second.size) == ('/c.jpg', None)
  assert (third.name, third.path, third.size) == ('s3://d/e.jpg', 's3://d/e.jpg', None)


def test_hugging_face_metadata_is_in_the_folder_or_in_its_splits(listed, tmp_path):
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


@pytest.mark.parametrize('column', ['id', 'filename', 'file', 'path', 'file_name', 'image'])
@pytest.mark.parametrize('name,delimiter', [('x.csv', ','), ('x.csv', ';'), ('x.csv', '\t'), ('x.tsv', '\t')])
def test_usual_columns_and_delimiters_are_recognised(listed, tmp_path, column, name, delimiter):
  rows = [('weight, kg', column, 'label'), ('1', '"b, c; d.jpg"', 'cat'), ('2,5', 'e.jpg', 'dog|cat')]
  if delimiter == ',':
    rows = [(f'"{weight}"', *rest) for weight, *rest in rows]
  (tmp_path / name).write_text(''.join(delimiter.join(row) + '\n' for row in rows))
  assert listed(tmp_path / name) == {'b, c; d.jpg': ('train', 'cat'), 'e.jpg': ('train', 'dog', 'cat')}


def test_columns_may_be_named(listed, tmp_path):
  (tmp_path / 'x.csv').write_text('image;picture;breed;label\nwrong.jpg;a.jpg;cat;wrong\n')
  assert listed(tmp_path / 'x.csv', columns=Columns('picture', 'breed')) == {'a.jpg': ('train', 'cat')}
  assert listed(tmp_path / 'x.csv', columns=Columns(label='breed')) == {'wrong.jpg': ('train', 'cat')}
  for wrong in (Columns(image='photo'), Columns(label='photo')):
    flag = 'image' if wrong.image else 'label'
    with pytest.raises(UserError, match=f"no column 'photo', but .*picture.*; correct --{flag}_column"):
      listed(tmp_path / 'x.csv', columns=wrong)


def test_image_is_preferred_to_id(listed, tmp_path):
  (tmp_path / 'x.csv').write_text('id,label,image\n7,cat,a.jpg\n')
  assert listed(tmp_path / 'x.csv') == {'a.jpg': ('train', 'cat')}


def test_missing_endings_of_file_names_are_found(tmp_path):
  """Kaggle's ids leave them out."""
  folder_of(tmp_path, 'train/1f2e.jpg', 'v1.5.png', 'whole')
  (tmp_path / 'x.csv').write_text('id,label\ntrain/1f2e,cat\nv1.5,dog\nwhole,dog\nnone,dog\n')
  found = list(Listing(str(tmp_path / 'x.csv'), tmp_path, ''))
  assert [image.name for image in found] == ['train/1f2e.jpg', 'v1.5.png', 'whole', 'none']
  assert [os.path.exists(image.path) for image in found] == [True, True, True, False]


def test_numbers_as_labels_are_sorted_by_number(tmp_path):
  (tmp_path / 'x.csv').write_text('image,label\na.jpg,10\nb.jpg,9\n')
  listing = Listing(str(tmp_path / 'x.csv'), tmp_path, str(tmp_path))
  assert listing.ordered_classes({'9', '10', '09'})[1] == ['09', '9', '10']
  assert listing.ordered_classes({'9', '10', 'x'})[1] == ['10', '9', 'x']


@pytest.mark.parametrize(
  'text,message',
  [
    (
      'picture,label\na.jpg,x\n',
      r"x.csv has no column 'image' or .*'id', but picture, label; .* --image_column",
    ),
    (
      'image,breed\na.jpg,x\n',
      r"x.csv has no column 'label' or .*'target', but image, breed; .* --label_column",
    ),
    ('image,label\n,x\n', 'line 2 has no path of an image'),
    ('image,label,split\na.jpg,x,my split\n', "line 2 has the split 'my split'; write train, val, test"),
    ('image,label,split\na.jpg,x,all\n', "line 2 has the split 'all'"),
    ('image,label\na.jpg,\xff\n', 'cannot be read near line 1 .*; save it as UTF-8'),
    ('a.jpg,x\nb.jpg,y\n', r'x.csv begins with an image \(a.jpg, x\); write the names of its columns above'),
  ],
)
def test_unusable_csv_is_refused_with_its_line(listed, tmp_path, text, message):
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
    ('[' * 100_000, 'cannot be read near line 1'),
  ],
)
def test_unusable_metadata_is_refused_with_its_line(listed, tmp_path, text, message):
  (tmp_path / 'x').mkdir()
  (tmp_path / 'x/metadata.jsonl').write_text(text)
  with pytest.raises(UserError, match=message):
    listed(tmp_path / 'x')
