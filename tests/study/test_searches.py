"""Searches: what is drawn, by whom, what stops early, and what is said of the best."""

import dataclasses
import itertools
import json
import math
import shlex
import threading

import pytest

optuna = pytest.importorskip('optuna')

from vit_jax.experiments import options as options_lib  # noqa: E402
from vit_jax.foundation.errors import UserError  # noqa: E402
from vit_jax.options import config_files  # noqa: E402
from vit_jax.study import search as search_lib  # noqa: E402
from vit_jax.study import search_table  # noqa: E402
from vit_jax.study.definition import Search, Variant, choice, integers, log, uniform  # noqa: E402
from vit_jax.training import results  # noqa: E402

SEARCH = Search(
  'Rates',
  Variant('quickstart', {'total': '6 steps'}),
  {
    'schedule.learning_rate': log(1e-4, 1e-1),
    'model.depth': integers(1, 4),
    'model.dropout': uniform(0.0, 0.2),
  },
  trials=7,
)


class Trainer:
  """In the place of a process: writes what a run writes, whose accuracy is best at a rate of 3e-3."""

  searches: dict[str, Search] = {}

  def __init__(self, module, file, workdir, name):
    import pathlib

    self._run = search_lib.trial_run(self.searches[file], pathlib.Path(workdir), name)
    self._stopped = threading.Event()

  def error(self) -> str:
    folder, config = self._run.folder, self._run.config
    accuracy = 1 - abs(math.log10(config.schedule.learning_rate / 3e-3)) / 4
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{'step': step, 'test/accuracy': accuracy * step / 9} for step in range(1, 10)]
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    if self.searches['waits'] and accuracy < 0.8:  # until it is stopped
      assert self._stopped.wait(60)
      return 'Preempted.'
    result = results.Result({'test/accuracy': accuracy}, 1.0, 1.0, 1, 'cpu', [])
    results.write(result, folder)
    return ''

  def stop(self) -> None:
    self._stopped.set()


@pytest.fixture
def searcher(monkeypatch, tmp_path):
  """Makes the searcher of a search in a folder; with `waits`, poor trials go on until they are stopped."""
  monkeypatch.setattr(search_lib, 'Process', Trainer)
  monkeypatch.setattr(search_lib, '_POLL_SECONDS', 0.01)
  monkeypatch.setattr(search_lib.StudyRun, 'result', lambda run: _result(run))

  def make(search: Search, folder: str, *, waits: bool = False) -> search_lib.Searcher:
    Trainer.searches = {'file': search, 'waits': waits}
    return search_lib.Searcher(search, 'file', tmp_path / folder)

  return make


def _result(run):
  return results.Result(**json.loads((run.folder / 'result.json').read_text()))


def drawn(searcher: search_lib.Searcher) -> list[dict]:
  return [trial.params for trial in searcher.study.trials]


def test_two_processes_and_a_stop_draw_what_one_process_draws_alone(searcher):
  alone = searcher(SEARCH, 'alone')
  list(alone.run(1))
  stopped = searcher(SEARCH, 'shared')
  begun = stopped.run(1)
  next(begun)
  begun.close()  # with trial_0 at work
  first, second = searcher(SEARCH, 'shared').run(1), searcher(SEARCH, 'shared').run(2)
  said = [text for pair in itertools.zip_longest(first, second) for text in pair if text]
  shared = searcher(SEARCH, 'shared')
  assert drawn(shared) == drawn(alone) and len(drawn(alone)) == SEARCH.trials
  assert len({str(params) for params in drawn(alone)}) == SEARCH.trials
  assert sorted(text.partition(' begins')[0] for text in said if 'begins' in text) == [
    f'trial_{number}' for number in range(SEARCH.trials)
  ]
  assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in shared.study.trials)


def test_halving_stops_a_trial_that_is_behind_at_its_first_evaluation(searcher):
  rates = {'schedule.learning_rate': choice(3e-3, 1e-4)}
  search = Search('Halving', SEARCH.variant, rates, trials=2, sampler='grid', halving=2)
  found = searcher(search, 'halving', waits=True)
  said = list(found.run(1))
  assert said[-1] == 'trial_1: stopped early'
  good, poor = found.study.trials
  assert good.params == {'schedule.learning_rate': 3e-3} and good.state == optuna.trial.TrialState.COMPLETE
  assert poor.state == optuna.trial.TrialState.PRUNED and len(poor.intermediate_values) == 1


def test_best_trial_is_first_in_the_table_and_its_command_is_its_config(searcher, tmp_path):
  found = searcher(SEARCH, 'table')
  list(found.run(1))
  search_table.write(SEARCH, found.study, tmp_path / 'table')
  search_table.draw(SEARCH, found.study, tmp_path / 'table')
  text = (tmp_path / 'table/table.md').read_text()
  best = max(found.study.trials, key=lambda trial: trial.value)
  assert text.splitlines()[4].startswith(f'| trial_{best.number} ') and '7 of 7 trials: 7 ended' in text
  words = shlex.split(search_table.best_command(SEARCH, best))
  options = dict(
    word.removeprefix('--config.').split('=', 1) for word in words if word.startswith('--config.')
  )
  values = config_files.load('quickstart')
  config = options_lib.changed(values, {**SEARCH.variant.options, **best.params, 'seed': 0}, 'the best')
  assert config.schedule.learning_rate == float(options['schedule.learning_rate'])
  assert config.model.depth == int(options['model.depth'])
  assert {path.name for path in (tmp_path / 'table').glob('*.png')} == {'importance.png', 'parallel.png'}


def test_grid_without_enough_combinations_is_refused(searcher):
  with pytest.raises(UserError, match='has 2 combinations'):
    searcher(Search('Grid', SEARCH.variant, {'model.depth': choice(1, 2)}, trials=3, sampler='grid'), 'grid')


def test_folder_of_another_search_is_refused(searcher):
  searcher(SEARCH, 'one')
  with pytest.raises(UserError, match='has another search'):
    searcher(Search('Other', SEARCH.variant, {'model.depth': integers(1, 2)}, trials=2), 'one')


def test_searches_of_other_seeds_try_other_draws(searcher):
  found = []
  for seed in (0, 1):
    search = dataclasses.replace(SEARCH, seed=seed)
    list(searcher(search, str(seed)).run(1))
    found += [value for params in drawn(searcher(search, str(seed))) for value in params.values()]
  real = [value for value in found if isinstance(value, float)]
  assert len(set(real)) == len(real) == 2 * 2 * SEARCH.trials


def test_trial_that_was_killed_between_two_draws_has_those_of_one_that_was_not(searcher):
  list(searcher(SEARCH, 'alone').run(1))
  killed = searcher(SEARCH, 'killed')
  trial = killed.study.ask()
  (name, values), *_ = SEARCH.ranges.items()
  killed.study.sampler = killed._sampler(0, 0)
  trial._suggest(name, search_lib._distribution(values))
  list(searcher(SEARCH, 'killed').run(1))
  assert drawn(searcher(SEARCH, 'killed')) == drawn(searcher(SEARCH, 'alone'))


@pytest.mark.parametrize('sampler', ['random', 'grid'])
def test_trial_whose_process_was_killed_while_it_drew_gets_all_its_options(searcher, sampler):
  ranges = {'model.depth': choice(1, 2), 'model.dropout': choice(0.0, 0.1)}
  search = Search('Killed', SEARCH.variant, ranges, trials=2, sampler=sampler)
  list(searcher(search, 'alone').run(1))
  killed = searcher(search, 'killed')
  killed.study.ask()
  list(searcher(search, 'killed').run(1))
  assert drawn(searcher(search, 'killed')) == drawn(searcher(search, 'alone'))


def test_trial_that_another_process_ends_in_between_is_not_done_again(searcher):
  other, own = searcher(SEARCH, 'race'), searcher(SEARCH, 'race')
  begun, claim = other._begin(set()), own._claim

  def late(number):
    own._claim = claim
    other._end(begun, 'It was killed.')
    return claim(number)

  own._claim = late
  assert own._begin(set()).trial.number == 1


def test_search_that_cannot_be_drawn_is_refused_before_its_folder_is_made(searcher, tmp_path):
  for change, said in (
    ({'sampler': 'Grid'}, 'choose from random, grid, tpe'),
    ({'halving': 1}, 'give 2 or more'),
    ({'ranges': {'model.depth': choice()}}, 'no values for model.depth'),
    ({'ranges': {'schedule.learning_rate': log(0, 1)}}, 'no values for schedule.learning_rate'),
    ({'ranges': {'schedule.learning_rat': uniform(0, 1)}}, 'did you mean schedule.learning_rate'),
    ({'metric': 'test/acc'}, "measures no 'test/acc'"),
  ):
    with pytest.raises(UserError, match=said):
      searcher(dataclasses.replace(SEARCH, **change), 'none')
  assert not (tmp_path / 'none').exists()
