"""What a search found: its trials from the best on as Markdown and JSON, and two pictures."""

import pathlib
import warnings
from collections import Counter
from typing import TYPE_CHECKING

from vit_jax.evaluation.base import format_metric
from vit_jax.experiments import report
from vit_jax.foundation import markdown
from vit_jax.study.definition import Search, Study, command
from vit_jax.study.search import name_of, option_text, variant_of

if TYPE_CHECKING:
  import optuna
  from optuna.trial import FrozenTrial


def write(search: Search, study: 'optuna.Study', workdir: pathlib.Path) -> None:
  """Writes table.md and table.json."""
  from optuna.trial import TrialState

  trials = study.get_trials(deepcopy=False)
  count = Counter(trial.state for trial in trials)
  ended = _from_best(study)
  tried = [trial for trial in trials if trial.intermediate_values and trial.state != TrialState.COMPLETE]
  header = ['trial', *search.ranges, search.metric, 'evaluations']
  rows = [_row(search, trial) for trial in (*ended, *tried)]
  text = [f'# {search.title}', '', markdown.table(header, rows), '']
  text += [
    f'{len(trials)} of {search.trials} trials: {count[TrialState.COMPLETE]} ended, {count[TrialState.PRUNED]} '
    f'stopped early, {count[TrialState.FAIL]} failed, {count[TrialState.RUNNING]} at work.',
    '',
  ]
  if ended:
    text += [f'The best, with `--workdir=…`: `{best_command(search, ended[0])}`', '']
  content = [
    {'trial': trial.number, 'options': trial.params, 'state': trial.state.name, 'value': trial.value}
    for trial in trials
  ]
  report.write_table(
    workdir, '\n'.join(text), {'title': search.title, 'metric': search.metric, 'trials': content}
  )


def best_command(search: Search, trial: 'FrozenTrial') -> str:
  """The command that trains what a trial trained."""
  return (
    command('best', Study(search.title, {'best': variant_of(search, trial.params)}))
    + f' --config.seed={search.seed}'
  )


def _from_best(study: 'optuna.Study') -> list['FrozenTrial']:
  """The trials that have ended, from the best on."""
  from optuna.study import StudyDirection
  from optuna.trial import TrialState

  ended = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
  return sorted(
    ended, key=lambda trial: trial.value or 0.0, reverse=study.direction == StudyDirection.MAXIMIZE
  )


def _row(search: Search, trial: 'FrozenTrial') -> list[str]:
  """A trial's options, and its last value: of one that stopped early that of its last evaluation."""
  values = trial.intermediate_values
  value = trial.value if trial.value is not None else values[max(values)]
  options = [option_text(trial.params[option]) for option in search.ranges]
  return [name_of(trial.number), *options, format_metric(search.metric, value), str(len(values))]


@report.plain_text
def draw(search: Search, study: 'optuna.Study', workdir: pathlib.Path) -> None:
  """Writes importance.png, how much of the metric each option explains (fANOVA), and parallel.png, all trials as lines.

  Both need trials that have ended with different values; otherwise nothing is written.
  """
  if len({trial.value for trial in _from_best(study)}) < 2:
    return
  from matplotlib import pyplot
  from optuna.visualization import matplotlib as figures

  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # they are experimental, says Optuna
    for name, draw in (
      ('importance', figures.plot_param_importances),
      ('parallel', figures.plot_parallel_coordinate),
    ):
      axes = draw(study, target_name=search.metric)
      figure = axes.get_figure(root=True)
      assert figure is not None
      figure.set_size_inches(9, 4.5)
      report.write_picture(figure, workdir / f'{name}.png')
      pyplot.close(figure)
