"""What a run says on the screen."""

import itertools
import time

import pytest

from vit_jax.training import console


@pytest.fixture
def clock(monkeypatch):
  """A clock on which each batch takes four seconds."""
  seconds = itertools.count(0, 4)
  monkeypatch.setattr(time, 'monotonic', lambda: float(next(seconds)))


def test_slow_evaluation_says_how_far_it_is_ever_less_often(clock, capsys):
  batches = list(range(40))
  assert list(console.Console().telling('Evaluation')(batches)) == batches
  assert capsys.readouterr().out.splitlines() == [
    'Evaluation: 3 of 40 batches, about 3:17 left',
    'Evaluation: 8 of 40 batches, about 2:24 left',
    'Evaluation: 18 of 40 batches, about 1:33 left',
    'Evaluation: 38 of 40 batches, about 0:08 left',
  ]


def test_evaluation_of_unknown_length_counts_its_batches(clock, capsys):
  assert len(list(console.Console().telling('Features', iter)(iter(range(4))))) == 4
  assert capsys.readouterr().out == 'Features: 3 batches\n'


def test_quick_evaluation_says_nothing(capsys):
  assert list(console.Console().telling('Evaluation')(range(100))) == list(range(100))
  assert not capsys.readouterr().out
