"""A run in whose workdir another config goes on."""

import dataclasses
import logging
import pathlib
import re
import shutil

import numpy as np
import pytest
import tiny
from PIL import Image

import vit_jax
from vit_jax import config as c
from vit_jax.data.sources import digits, subset
from vit_jax.foundation.errors import UserError
from vit_jax.training import loop, resume
from vit_jax.training.run import Run

pytestmark = pytest.mark.slow

DIGITS = tuple('0123456789')
CONFIG = c.Config(
  total='2 steps',
  batch_size=8,
  model=tiny.options(),
  data=c.DataConfig(source='digits', image_size=(8, 8), crop='resize'),
)


@pytest.fixture(scope='module')
def two_steps(tmp_path_factory):
  """The workdir of a run of CONFIG that has ended."""
  workdir = tmp_path_factory.mktemp('two_steps') / 'run'
  loop.train(CONFIG, workdir)
  return workdir


@pytest.fixture
def workdir(two_steps, tmp_path):
  """A copy of it."""
  return pathlib.Path(shutil.copytree(two_steps, tmp_path / 'run'))


@pytest.mark.nightly
def test_takeover_by_a_model_that_does_not_fit_the_checkpoint_leaves_the_run_as_it_was(workdir):
  before = (workdir / 'config.json').read_bytes()
  with pytest.raises(UserError, match='does not fit'):
    loop.train(dataclasses.replace(CONFIG, model=tiny.options(width=48)), workdir, takeover=True)
  assert (workdir / 'config.json').read_bytes() == before
  loop.train(CONFIG, workdir)  # the command that it was started with goes on


def test_training_data_of_another_size_is_not_taken_for_that_of_the_run(workdir, monkeypatch, caplog):
  run, source = loop.open_training(CONFIG)
  fewer = subset.at_most(source, 20, seed=0)  # of each class, as if files had been removed
  shorter = Run(CONFIG, dataclasses.replace(run.dataset, examples=len(fewer)))
  monkeypatch.setattr(loop, 'open_training', lambda config, trained: (shorter, fewer))
  with pytest.raises(
    UserError, match=f'has 200 images, and {len(source):,} when the run began.* by --takeover'
  ):
    loop.train(CONFIG, workdir)
  with caplog.at_level(logging.WARNING):
    loop.train(CONFIG, workdir, takeover=True)
  assert 'has 200 images' in caplog.text


@pytest.mark.parametrize('batch_size', [8, 32])
def test_takeover_with_batches_of_another_size_is_told_what_it_has_seen(tmp_path, caplog, batch_size):
  """3.2 epochs of 10 images; by batches of 32, a run of five would be at its end."""
  data = dataclasses.replace(CONFIG.data, max_per_class=1)
  few = dataclasses.replace(CONFIG, data=data, batch_size=16, total='3.2 epochs')
  loop.train(few, tmp_path / 'run')
  other = dataclasses.replace(few, total='5 epochs', batch_size=batch_size)
  if batch_size == 8:
    loop.train(other, tmp_path / 'run', takeover=True)
    said = 'A batch has 8 images, and 16 before: the 2 steps until here count as 1.6 epochs of the schedule, and were'
    assert f'{said} 3.2.' in caplog.text
  else:
    with pytest.raises(
      UserError, match=r"count as 6.4 epochs .*, and were 3.2, so that none of '5 epochs' is left"
    ):
      loop.train(other, tmp_path / 'run', takeover=True)


@pytest.fixture
def folder(tmp_path):
  """(its config, a folder with 8 images to train on and 4 to evaluate on)."""
  rng = np.random.default_rng(0)
  for number in range(12):
    image = tmp_path / 'photos' / ('val' if number < 4 else 'train') / 'ab'[number % 2] / f'{number}.png'
    image.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(image)
  photos = tmp_path / 'photos'
  data = c.DataConfig(source=f'folder:{photos}', image_size=(8, 8), crop='resize')
  evaluators = {'val': c.ClassificationEvaluatorConfig(split='val')}
  return dataclasses.replace(CONFIG, data=data, evaluators=evaluators), photos


@pytest.mark.nightly
def test_numbers_of_a_run_that_has_ended_are_said_of_the_images_that_they_were_measured_on(
  folder, tmp_path, capsys
):
  config, photos = folder
  loop.train(config, tmp_path / 'run')
  (measured,) = re.findall(r'^Done .*(val/accuracy \S+) of 4 images', capsys.readouterr().out, re.MULTILINE)
  (photos / 'val/a/0.png').unlink()
  loop.train(config, tmp_path / 'run')
  said = capsys.readouterr().out
  assert 'evaluator val has 3 images and had 4 at the last checkpoint' in said
  assert re.search(rf'^Done .*{re.escape(measured)} of 4 images', said, re.MULTILINE)


@pytest.mark.nightly(but='True')
@pytest.mark.parametrize('takeover', [False, True])
def test_head_that_was_fitted_to_other_images_is_no_end_of_a_run(folder, tmp_path, takeover):
  config, photos = folder
  config = dataclasses.replace(config, total='0 steps', init=c.InitConfig(head='probe'))
  loop.train(config, tmp_path / 'run')
  shutil.copy(photos / 'val/a/0.png', photos / 'train/a/another.png')
  with pytest.raises(UserError, match='has 9 images, and 8 when the head was fitted; begin a new --workdir'):
    loop.train(config, tmp_path / 'run', takeover=takeover)


def test_data_of_another_run_is_not_searched_for_the_classes_of_this_one(folder, workdir):
  with pytest.raises(UserError, match='holds a run with another config'):
    loop.train(folder[0], workdir)


def test_labels_of_data_in_another_order_are_numbered_as_the_run_began(workdir, monkeypatch, caplog):
  """A run whose data comes back with its classes in another order goes on with the outputs that it has."""
  monkeypatch.setattr(digits, '_CLASSES', DIGITS[::-1])
  _, source = loop.open_training(CONFIG)
  _, numbered = loop.open_training(CONFIG, DIGITS)
  assert source.class_names == DIGITS[::-1] and numbered.class_names == DIGITS
  assert [DIGITS[label] for label in numbered.labels()] == [DIGITS[::-1][label] for label in source.labels()]
  loop.train(dataclasses.replace(CONFIG, total='3 steps'), workdir, takeover=True)
  assert resume.stored_classes(workdir / 'checkpoints') == DIGITS
  assert 'its outputs are matched with the classes of the data by name' in caplog.text


@pytest.mark.parametrize('mixture', [(), (('digits:test', 1.0), ('digits:train[:50]', 2.0))])
def test_classes_of_a_run_are_matched_by_name_or_refused(mixture):
  config = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, mixture=mixture))
  more = ('none', *DIGITS[::-1])
  run, source = loop.open_training(config, more)
  _, plain = loop.open_training(config)
  assert run.dataset.class_names == more and run.architecture.num_classes == 11
  assert [more[label] for label in source.labels()] == [DIGITS[label] for label in plain.labels()]
  with pytest.raises(
    UserError, match=r'does not have 1 of the 10 classes \(9\); .*--config.init.checkpoint='
  ):
    loop.open_training(config, DIGITS[:-1])


@pytest.mark.nightly
def test_takeover_at_another_image_size_cuts_the_same_share_in_evaluations(tmp_path):
  def config(size, **cut):
    return dataclasses.replace(
      CONFIG,
      model=tiny.options(position='none'),
      data=dataclasses.replace(CONFIG.data, image_size=size),
      evaluators={'test': c.ClassificationEvaluatorConfig(**cut)},
    )

  loop.train(config((8, 8), crop='central', resize=10), tmp_path)
  loop.train(dataclasses.replace(config((16, 16)), total='3 steps'), tmp_path, takeover=True)
  taken = resume.read_config(tmp_path)
  assert (taken.evaluators['test'].crop, taken.evaluators['test'].resize) == ('central', 20)
  assert vit_jax.load(tmp_path).preprocess.shorter == 20
  with pytest.raises(
    UserError, match=r'config\.evaluators\.test\.resize is 10 pixels, out of which no 16 × 16'
  ):
    loop.train(config((16, 16), resize=10), tmp_path, takeover=True)
