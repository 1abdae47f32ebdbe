"""`--duplicates=merge` where several images of a shard have the same name."""

import itertools
import tarfile

import pytest
from made_samples import picture
from made_sources import add_file
from prepared_sets import files, interrupted_after, prepared

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source

pytestmark = pytest.mark.usefixtures('in_this_process')

BAD = b'no image'


def table(folder, *rows):
  """A table of (name, seed of the picture, class), which has a line for each class of a file."""
  for name, seed, _ in rows:
    (folder / name).write_bytes(picture(seed))
  lines = [f'{name},{label}\n' for name, _, label in rows]
  (folder / 'x.csv').write_text('image,label\n' + ''.join(lines))
  return folder / 'x.csv'


def tar(path, *members):
  """A tar of (name, content) in this order, also of several members of one name."""
  with tarfile.open(path, 'w') as archive:
    for name, content in members:
      add_file(archive, name, content)
  return path


def merged(source, folder):
  """Picture -> the names of its classes, of the records; each picture is one record."""
  result = prepared(source, folder, merge_copies=True, skip_bad=True)
  records = open_source(f'tfds:{folder}', 'train', data=DataConfig(max_labels=5))
  found = {r.image: {records.class_names[label] for label in r.label} for r in records}
  assert len(found) == len(records) == result.records['train']
  return found


def test_table_with_a_line_for_each_class_gives_one_record_a_file_with_all_its_classes(tmp_path):
  rows = [
    ('0.png', 0, 'cat'),
    ('0.png', 0, 'outdoor'),
    ('1.png', 1, 'cat'),
    ('2.png', 2, 'dog'),
    ('3.png', 3, 'dog'),
    ('3.png', 3, 'outdoor'),
    ('4.png', 3, 'dog'),  # a copy by another name
    ('5.png', 5, 'cat'),
    ('5.png', 5, 'cat'),  # the same line twice
  ]
  assert merged(table(tmp_path, *rows), tmp_path / 'set') == {
    picture(0): {'cat', 'outdoor'},
    picture(1): {'cat'},
    picture(2): {'dog'},
    picture(3): {'dog', 'outdoor'},
    picture(5): {'cat'},
  }


@pytest.mark.parametrize('order', itertools.permutations(range(4)), ids=str)
def test_tar_with_a_member_twice_of_which_one_is_bad_loses_no_other_image(tmp_path, order):
  """Digests belong to the images that are good, wherever the bad one of the same name stands."""
  twice = [BAD, picture(0), picture(1), picture(0)]
  members = [('cat/0.jpg', twice[number]) for number in order]
  members += [('dog/1.jpg', picture(1)), ('dog/2.jpg', picture(2)), ('ant/3.jpg', picture(3))]
  assert merged(tar(tmp_path / 'x.tar', *members), tmp_path / 'set') == {
    picture(0): {'cat'},
    picture(1): {'cat', 'dog'},
    picture(2): {'dog'},
    picture(3): {'ant'},
  }
  assert 'cat/0.jpg,train,' in (tmp_path / 'set/bad_images.csv').read_text()


@pytest.mark.parametrize('written', range(4))
def test_preparation_that_was_interrupted_ends_in_the_same_records(tmp_path, monkeypatch, written):
  """`written` 0: some shards; 1: all; 2: the merges too; 3: some merged shards too."""
  members = [
    (f'{"cat" if k % 2 else "dog"}/{k % 5}.jpg', picture(k % 6) + b'\0' * 300_000) for k in range(12)
  ]
  members[3:3] = [(members[2][0], BAD)]
  source = tar(tmp_path / 'x.tar', *members)
  expected = merged(source, tmp_path / 'undisturbed/set')
  assert len(expected) == 6
  for shards in (2, 100, 0, 1)[: written + 1]:
    with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
      interrupted_after(shards, patches)
      prepared(source, tmp_path / 'set', merge_copies=True, skip_bad=True)
  assert merged(source, tmp_path / 'set') == expected
  assert files(tmp_path / 'set') == files(tmp_path / 'undisturbed/set')
