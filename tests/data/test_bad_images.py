import json

import bucket_data
import commands
import jax
import numpy as np
import pytest
from image_bytes import png

from vit_jax import options
from vit_jax.data.bad_images import BadImages
from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import EvalPipeline, TrainPipeline
from vit_jax.data.sources.base import Record, Source
from vit_jax.foundation.errors import BadImage, UserError

DATA = DataConfig(image_size=(4, 4), crop='random', padding=1, bad_images='replace')


class Damaged(Source):
  """Images of one colour, which is their label; some cannot be decoded."""

  def __init__(self, size, bad):
    self.class_names = tuple(map(str, range(size)))
    self.size, self.bad = size, bad

  def __len__(self):
    return self.size

  def __getitem__(self, index):
    image = b'damaged' if index in self.bad else png(np.full((4, 4, 3), index))
    return Record(image, index, f'record {index}')

  def labels(self):
    return np.arange(self.size, dtype=np.int32)


def pipeline(source, sharding, data=DATA, batch_size=8):
  return TrainPipeline(source, data, batch_size=batch_size, seed=0, sharding=sharding)


def test_bad_image_is_replaced_by_the_next_steps_row_with_its_label(split_over):
  bad = {3, 17, 21}
  sound = pipeline(Damaged(40, ()), split_over(1))
  damaged = pipeline(Damaged(40, bad), split_over(1))
  replaced = 0
  for step in range(10):
    batch, expected, following = damaged.batch(step), sound.batch(step), sound.batch(step + 1)
    for row, index in enumerate(damaged.indices(step)):
      source = following if index in bad else expected
      replaced += index in bad
      assert int(batch['label'][row]) not in bad
      for name in batch:
        np.testing.assert_array_equal(batch[name][row], source[name][row])
  assert replaced >= 3
  assert damaged.bad_images.report(0) == {}


@pytest.mark.parametrize('parts,threads', [(1, 3), (8, 1), (4, 2)])
def test_batches_are_the_same_for_any_devices_and_threads(split_over, parts, threads):
  source = Damaged(30, set(range(0, 30, 4)))
  expected = pipeline(source, split_over(1))
  data = DataConfig(image_size=(4, 4), crop='random', padding=1, bad_images='replace', threads=threads)
  with pipeline(source, split_over(parts), data).stream(0, 8) as batches:
    for step, batch in enumerate(batches):
      jax.tree.map(np.testing.assert_array_equal, batch, expected.batch(step))


def test_stopping_names_the_image_and_the_remedy(split_over):
  data = DataConfig(image_size=(4, 4), crop='resize')
  with pytest.raises(UserError, match=r"record 3 is not an image.*config\.data\.bad_images='replace'\.$"):
    pipeline(Damaged(8, {3}), split_over(1), data).batch(0)


def test_eleven_bad_images_in_a_row_end_the_run(split_over):
  with pytest.raises(UserError, match=r'record \d+ is not an image.*11 images one after the other'):
    pipeline(Damaged(20, set(range(20))), split_over(1)).batch(0)


def test_evaluation_never_replaces(split_over):
  options = {'crop': 'resize', 'resize': None, 'batch_size': 4, 'sharding': split_over(1)}
  batches = EvalPipeline(Damaged(8, {3}), DATA, **options)
  with pytest.raises(UserError, match='record 3 is not an image'):
    list(batches)


def test_other_errors_are_not_replaced(split_over):
  class Unreadable(Damaged):
    def __getitem__(self, index):
      raise UserError(f'record {index} cannot be read (Stale file handle); restore it.')

  with pytest.raises(UserError, match='Stale file handle'):
    pipeline(Unreadable(8, ()), split_over(1)).batch(0)


def test_stopped_run_may_go_on_with_another_policy():
  assert 'bad_images' in options.resumable(DataConfig)


def test_list_has_each_image_once_and_only_those_the_steps_needed(tmp_path):
  path = tmp_path / 'report' / 'bad_images.jsonl'
  images = BadImages()
  images.keep_in(path, 0)
  for step, name in ((4, 'b'), (2, 'a'), (9, 'a'), (3, 'b'), (7, 'c')):
    images.add(step, BadImage(name, f'{name} is bad.'))
  assert images.report(2) == {} and not path.exists()
  assert images.report(3) == {'data/bad_images': 1}
  assert images.report(7) == {'data/bad_images': 2}
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  expected = [{'step': step, 'name': name, 'error': f'{name} is bad.'} for step, name in ((2, 'a'), (3, 'b'))]
  assert lines == expected
  assert images.report(8) == {'data/bad_images': 3}
  resumed = BadImages()
  resumed.keep_in(path, 3)
  assert resumed.report(100) == {'data/bad_images': 1}


@pytest.mark.nightly
@pytest.mark.slow
def test_run_that_replaces_an_image_lists_it(tmp_path):
  images = bucket_data.write_images(tmp_path / 'images')
  for path in (images / 'train').glob('*/1?.png'):  # 42 images are left, and four steps need each of them
    path.unlink()
  damaged = images / 'train/dark/7.png'
  damaged.write_bytes(damaged.read_bytes()[:40])
  flags = ['--config.data.bad_images=replace', '--config.log_every=1 steps']
  result = commands.run(tmp_path, f'--config.data.source=folder:{images}', *flags)
  commands.assert_done(result)
  assert '1 training images cannot be decoded and are not trained on' in result.stderr
  (line,) = (tmp_path / 'run' / 'report' / 'bad_images.jsonl').read_text().splitlines()
  assert json.loads(line)['name'] == str(damaged)
  metrics = [json.loads(line) for line in (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()]
  assert metrics[-1]['data/bad_images'] == 1
