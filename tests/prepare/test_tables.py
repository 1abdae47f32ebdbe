"""Tables: which images they name, in which split and with which labels."""

import json
import os

import pytest
from made_sources import PICTURE, folder_of

from vit_jax.foundation.errors import UserError
from vit_jax.prepare.listing import Listing
from vit_jax.prepare.selection import Selection
from vit_jax.prepare.source_image import SourceImage
from vit_jax.prepare.tables import Columns


def test_csv_has_an_image_a_label_and_a_split_in_each_line(listed, tmp_path):
  (tmp_path / 'labels.csv').write_text(
    '\ufeffimage,label,split,note\n'
    'a.jpg,cat,train,x\n"b,c.jpg",dog,validation,y\n/elsewhere/d.jpg,"tench, Tinca tinca",extra,\n'
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
  # Which of the two is meant?
  assert listed(tmp_path / 'x.csv', columns=Columns(label='breed')).keys() == {'a', 'b'}


def test_a_cell_may_have_several_labels(listed, tmp_path):
  (tmp_path / 'x.csv').write_text('image,label\na.jpg,cat;dog\nb.jpg,\ntrain/c.jpg, dog | cat|dog \n')
  assert listed(tmp_path / 'x.csv') == {
    'a.jpg': ('train', 'cat', 'dog'),
    'b.jpg': ('train',),
    'train/c.jpg': ('train', 'dog', 'cat'),
  }


def test_whole_numbers_of_a_column_of_floats_are_the_classes_that_parquet_has(listed, tmp_path):
  """pandas writes whole numbers so, once a cell of the column is empty."""
  pa = pytest.importorskip('pyarrow')
  parquet = pytest.importorskip('pyarrow.parquet')
  values = [10.0, 2.0, 10.0]
  table = pa.table({'image': [PICTURE] * 3, 'label': pa.array(values)})
  parquet.write_table(table, tmp_path / 'x.parquet')
  expected = [labels for _, *labels in listed(tmp_path / 'x.parquet').values()]
  lines = [f'{i}.jpg,{value}\n' for i, value in enumerate(values)]
  (tmp_path / 'x.csv').write_text(''.join(['image,label\n', *lines]))
  rows = [json.dumps({'image': f'{i}.jpg', 'label': value}) for i, value in enumerate(values)]
  (tmp_path / 'x/metadata.jsonl').parent.mkdir()
  (tmp_path / 'x/metadata.jsonl').write_text('\n'.join(rows))
  for source in ('x.csv', 'x'):
    found = [labels for _, *labels in listed(tmp_path / source).values()]
    assert found == expected == [['10'], ['2'], ['10']]
  (tmp_path / 'x.csv').write_text('image,label\na.jpg,v1.0\nb.jpg,1.5\nc.jpg,1.05\nd.jpg,x,\n')
  assert [label for _, label in listed(tmp_path / 'x.csv').values()] == ['v1.0', '1.5', '1.05', 'x']


def test_splits_are_known_by_any_usual_name(listed, tmp_path):
  names = {'Training': 'train', 'dev': 'val', 'DEV': 'val', 'test set': 'test', 'extra': 'extra'}
  rows = [f'{i}.jpg,x,{name}' for i, name in enumerate(names)]
  rows += ['a/Testing/1.jpg,x,', '/home/dev/test/2.jpg,x,', 'test.jpg,x,', 'test tubes/3.jpg,x,']
  (tmp_path / 'x.csv').write_text('\n'.join(['image,label,split', *rows]))
  found = [split for split, _ in listed(tmp_path / 'x.csv').values()]
  assert found == [*names.values(), 'test', 'train', 'train', 'train']


def test_an_absolute_path_below_the_tables_folder_says_the_split_as_a_relative_one(listed, tmp_path):
  rows = [f'{tmp_path}/test/{i}.jpg,x' for i in range(2)] + [
    f'{tmp_path}/train/2.jpg,x',
    f'{tmp_path}/3.jpg,x',
  ]
  (tmp_path / 'x.csv').write_text('\n'.join(['image,label', *rows]))
  assert [split for split, _ in listed(tmp_path / 'x.csv').values()] == ['test', 'test', 'train', 'train']


def test_names_that_an_apple_computer_wrote_are_found(tmp_path):
  folder_of(tmp_path, 'cafe\u0301/1.jpg')
  (tmp_path / 'x.csv').write_text('image,label\ncaf\u00e9/1.jpg,cafe\u0301\n', encoding='utf-8')
  (image,) = Listing(str(tmp_path / 'x.csv'), tmp_path, '')
  assert os.path.exists(image.path) and image.labels == ['caf\u00e9']


@pytest.mark.parametrize(
  'address',
  [
    *('https://user@169.254.169.254:80/a.jpg', 'http://2852039166/a.jpg', 'http://0xa9fea9fe/a.jpg'),
    *('http://[fe80:0:0:0:0:0:0:1]/a.jpg', 'http://[0:0:0:0:0:ffff:a9fe:a9fe]/a', 'ftp://169.254.1/a.jpg'),
    *('http://169.254.169%2E254/a.jpg', 'http://\uff11\uff16\uff19.254.169.254/a.jpg'),
    *('http://metadata.google.internal/a', 'http://[fd00:ec2:0:0:0:0:0:254]/a', 'http://100.100.100.200/a'),
    *('simplecache::http://h/a.jpg', 'file://x::s3://b/a.jpg'),
  ],
)
def test_addresses_with_this_machines_rights_are_refused_unless_allowed(listed, tmp_path, address):
  (tmp_path / 'x.csv').write_text(f'image,label\n{address},x\n', encoding='utf-8')
  with pytest.raises(UserError, match=r"csv line 2 names '.*(chains protocols|own network).*--any_address"):
    listed(tmp_path / 'x.csv')
  assert len(listed(tmp_path / 'x.csv', selection=Selection(any_address=True))) == 1


@pytest.mark.parametrize('address', ['https://h.org/a.jpg', 'http://10.0.0.1/a.jpg', 'gs://b/a::b.jpg'])
def test_other_addresses_are_listed(listed, tmp_path, address):
  (tmp_path / 'x.csv').write_text(f'image,label\n{address},x\n')
  assert len(listed(tmp_path / 'x.csv')) == 1


def test_paths_are_relative_to_the_table_absolute_or_addresses(tmp_path):
  (tmp_path / 'x.csv').write_text('image,label\na/../b.jpg,1\n/c.jpg,1\ns3://d/e.jpg,1\n')
  (tmp_path / 'b.jpg').write_bytes(PICTURE)
  (tmp_path / 's').mkdir()
  first, second, third = Listing(str(tmp_path / 'x.csv'), tmp_path / 's', '')
  assert first == SourceImage('b.jpg', str(tmp_path / 'b.jpg'), None, len(PICTURE), 'train', ['1'], [], [])
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
    with pytest.raises(
      UserError, match=f"no column 'photo', but .*picture.*; name the right one with --{flag}_column"
    ):
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
    ('picture,label\na.jpg,x\n', r"has no column 'image' or .*, but picture, label; .* --image_column"),
    ('image,breed\na.jpg,x\n', r"has no column 'label' or .*, but image, breed; .* --label_column"),
    ('image,label\n,x\n', 'line 2 has no path of an image'),
    ('image,label,split\na.jpg,x,my split\n', "line 2 has the split 'my split'; write train, val, test"),
    ('image,label\na.jpg,\xff\n', 'cannot be read near line 1 .*; save it as UTF-8'),
    (
      'image,label,note\na.jpg,b,"Stop\nb.jpg,b,two\nc.jpg,b,a 5" pipe\n',
      r'cannot be read near line \d .*expected',
    ),
    ('image,label\na.jpg,"b\nc.jpg,d\n', r'cannot be read near line \d .unexpected end of data'),
    ('image,label\na.jpg,b\nc.jpg,crane, bird\n', r'near line 3 \(it has 3 fields and the header 2; quote'),
    ('image;label;label\na.jpg;x;y\n', r"near line 1 \(it has 'label' twice\)"),
    ('image,label,split\na.jpg,x,dev\nb.jpg,x,val\n', "line 3 has the split 'val', and a line above 'dev'"),
    ('a.jpg,x\nb.jpg,y\n', r'x.csv has no column .*, but a.jpg, x; write the names of its columns above'),
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
    ('{"file_name": "a.jpg", "label": 1.5}', 'line 1 has the label 1.5'),
    ('[1]', 'cannot be read near line 1 .it is not an object'),
    ('{"file_name": "a.jpg", "label": {"x": 1}}', 'line 1 has the label'),
    ('{"file_name": "../../etc/a.jpg", "label": 1}', 'line 1 names .*, which is not below its folder'),
    ('{"file_name": "a.jpg", "label": 1, "split": ["x"]}', r"line 1 has the split \['x'\]"),
    ('{"file_name": "/etc/a.jpg", "label": 1}', 'which is not below its folder'),
    ('{"file_name": "gs://b/a.jpg", "label": 1}', 'which is not below its folder'),
  ],
)
def test_unusable_metadata_is_refused_with_its_line(listed, tmp_path, text, message):
  (tmp_path / 'x').mkdir()
  (tmp_path / 'x/metadata.jsonl').write_text(text)
  with pytest.raises(UserError, match=message):
    listed(tmp_path / 'x')
