"""What a run says of itself on the screen."""

import itertools
import time
import types

import pytest
import tiny

from vit_jax import config as c
from vit_jax.data import sources
from vit_jax.training import console
from vit_jax.training.run import Dataset, Run


@pytest.mark.parametrize(
  ('trained_on', 'source', 'evaluated_on'),
  [
    ('tfds:cifar10:train[:98%]', None, 'tfds:cifar10 test'),
    ('digits:train[:90%]', None, 'digits test'),
    ('digits', 'tfds:mnist:train[98%:]', 'tfds:mnist train[98%:]'),
  ],
)
def test_evaluators_are_said_with_the_split_that_they_read(trained_on, source, evaluated_on):
  config = c.Config(
    batch_size=8, model=tiny.options(), data=c.DataConfig(source=trained_on, image_size=(8, 8))
  )
  run = Run(config, Dataset(8, ('a', 'b')))
  assert console.training_data_text(run) == f'Training data: {trained_on}, 8 images, 2 classes: a, b'
  title = sources.title(source or run.training_source, 'test')
  opened = types.SimpleNamespace(title=title, examples=1_000, notes=('All are counted.',))
  assert console.evaluator_lines({'other': opened}) == [
    f'Evaluator other: {evaluated_on}, 1,000 images',
    'All are counted.',
  ]


def test_an_accuracy_says_of_how_many_images(capsys):
  screen = console.Console()
  few = types.SimpleNamespace(title='digits test', examples=45, notes=())
  screen.evaluators({'val': few, 'val_web': types.SimpleNamespace(title='', examples=1_200, notes=())})
  screen.evaluation(7, {'val_ema/accuracy': 43 / 45, 'val/loss': 0.25, 'val_web_5shot/accuracy': 0.5})
  assert capsys.readouterr().out.splitlines() == [
    'Evaluator val: digits test, 45 images',
    'Evaluator val_web: 1,200 images',
    'step 7: val/loss 0.2500, val_ema/accuracy 95.56% of 45 images, val_web_5shot/accuracy 50.00% of 1,200 images',
  ]


@pytest.fixture
def clock(monkeypatch):
  """A clock on which each batch takes four seconds."""
  seconds = itertools.count(0, 4)
  monkeypatch.setattr(time, 'monotonic', lambda: float(next(seconds)))


def test_slow_evaluation_says_how_far_it_is_ever_less_often_and_then_each_minute(clock, capsys):
  batches = list(range(40))
  assert list(console.Console().with_progress('Evaluation')(batches)) == batches
  assert capsys.readouterr().out.splitlines() == [
    'Evaluation: 3 of 40 batches, about 3:17 left',
    'Evaluation: 8 of 40 batches, about 2:24 left',
    'Evaluation: 18 of 40 batches, about 1:33 left',
    'Evaluation: 34 of 40 batches, about 0:25 left',
  ]


def test_evaluation_of_unknown_length_counts_its_batches(clock, capsys):
  assert len(list(console.Console().with_progress('Features', iter)(iter(range(4))))) == 4
  assert capsys.readouterr().out == 'Features: 3 batches\n'


def test_quick_evaluation_says_nothing(capsys):
  assert list(console.Console().with_progress('Evaluation')(range(100))) == list(range(100))
  assert not capsys.readouterr().out
