"""ImageNet-21k as image-net.org gives it out, in small: a tar of tars, with all that is wrong in it."""

import csv

import made_imagenet21k
import numpy as np
import pytest
from made_samples import picture, shard
from prepared_sets import files, interrupted_after, prepared

from vit_jax.config import from_config_dict
from vit_jax.data.config import DataConfig
from vit_jax.data.decode import Picture
from vit_jax.data.sources import open_source, open_training
from vit_jax.foundation.errors import UserError
from vit_jax.options.config_files import load
from vit_jax.prepare import named_sets
from vit_jax.prepare.selection import Selection

pytestmark = pytest.mark.usefixtures('in_this_process')

FULL = Selection(split='full')
SYNSETS, IMAGES = 12, 3


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  path = tmp_path_factory.mktemp('downloads') / 'winter21_whole.tar'
  return made_imagenet21k.write(path, SYNSETS, IMAGES, 'winter21_whole/')


def rows(path):
  with open(path) as file:
    return list(csv.DictReader(file))


def test_classes_are_the_sorted_synsets_and_images_their_files(whole, tmp_path):
  result = prepared(whole, tmp_path / 'set', selection=FULL, skip_bad=True)
  expected = {
    content: number
    for number, (_, contents) in enumerate(made_imagenet21k.contents(SYNSETS, IMAGES))
    for _, content in contents
  }
  source = open_source(f'tfds:{tmp_path / "set"}', 'full', data=DataConfig())
  assert source.class_names == tuple(made_imagenet21k.synset(number) for number in range(SYNSETS))
  assert result.records == {'full': SYNSETS * IMAGES - 1} and result.bad == 1 and result.copies == 1
  found = [source[k] for k in range(len(source))]
  labels = np.array([record.label for record in found])
  known = np.array([expected[record.image] for record in found])
  assert (labels != known).sum() == 1  # the copy, which two synsets have
  assert all(Picture(record.image, 3, '').pixels().shape == (32, 40, 3) for record in found)
  assert [row['image'] for row in rows(tmp_path / 'set/bad_images.csv')] == ['n01440790/n01440790_0.JPEG']
  copies = rows(tmp_path / 'set/duplicates.csv')
  assert [row['classes'] for row in copies] == ['n01440842', 'n01440855']
  assert {row['group'] for row in copies} == {'0'}


@pytest.mark.parametrize('merge_copies', [False, True])
def test_killed_preparations_end_in_the_same_bytes(tmp_path, monkeypatch, merge_copies):
  """Shards of a MiB; with merging, the kills fall before and after the merges are written down."""
  names = [f'x/{number}.tar' for number in range(3)]
  for number, name in enumerate(names):
    contents = [picture((3 * number + k) % 4) + b'\0' * 300_000 for k in range(4)]
    shard(tmp_path / name, *({'jpg': c, 'cls': str(k)} for k, c in enumerate(contents)))
  options = {'selection': FULL, 'merge_copies': merge_copies}
  result = prepared(tmp_path / 'x', tmp_path / 'undisturbed/set', **options)
  assert result.shards == 4 and result.copies == 8
  for _ in range(6 if merge_copies else 3):
    with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
      interrupted_after(1, patches)
      prepared(tmp_path / 'x', tmp_path / 'set', **options)
  prepared(tmp_path / 'x', tmp_path / 'set', **options)
  assert files(tmp_path / 'set') == files(tmp_path / 'undisturbed/set')


def test_limit_takes_some_images_of_every_synset(whole, listed):
  found = listed(whole, selection=Selection(limit=1, split='full'))
  assert len(found) == len(set(found.values())) == SYNSETS


def test_recipes_find_what_prepare_wrote_by_default(whole, tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  destination = named_sets.default_destination('imagenet21k')
  prepared(whole, destination, selection=FULL, skip_bad=True)
  command = named_sets.training_command('imagenet21k', 35)
  assert "config.data.split='full[3:]'" in command and "val.split='full[:3]'" in command
  for recipe in ('imagenet21k', 'augreg'):
    config = load(f'configs/vit_l16.py:{recipe}')
    config.data.split = 'full[3:]'
    data = from_config_dict(config).data
    source = open_training(data, 0)
    assert len(source) == 32 and len(source.class_names) == SYNSETS
  assert named_sets.label_options(None, False) == ''
  lists = named_sets.label_options(5, True)
  assert 'data.max_labels=5' in lists and 'data.label_weights=True' in lists


def test_a_recipe_is_refused_where_prepared_classes_are_too_few(tmp_path):
  shard(tmp_path / 'x.tar', {'jpg': picture(0), 'cls': '1'})
  with pytest.raises(UserError, match=r'x.tar has 2 classes and not 1,000; check it, or prepare it under'):
    prepared(tmp_path / 'x.tar', tmp_path / 'set', selection=Selection(num_classes=1000))
