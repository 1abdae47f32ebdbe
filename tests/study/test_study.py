"""Studies: their runs, what goes on after a kill, and the table."""

import dataclasses
import functools
import json
import math
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import unittest.mock

import fork_server
import pytest
import run_steps
from PIL import Image
from processes import wait_until

from vit_jax.experiments import runner
from vit_jax.foundation.errors import UserError
from vit_jax.options import config_files
from vit_jax.study import definition, table
from vit_jax.study.definition import Study, Variant
from vit_jax.training.results import Result

OPTIONS = """
from vit_jax.selftrain.choosing import Choice
from vit_jax.study.definition import Study, Unlabelled, Variant

OPTIONS = {
  'total': '6 steps', 'batch_size': 16, 'checkpoint.every': '3 steps', 'log_every': '3 steps',
  'tensorboard.pictures': False, 'model.depth': 1, 'model.width': 16, 'model.mlp_dim': 16,
}
"""
STUDY = f"""{OPTIONS}
def get_study():
  return Study('Two rates', {{
    'high': Variant('quickstart', OPTIONS, published='9 %'),
    'low': Variant('quickstart', {{**OPTIONS, 'schedule.learning_rate': 1e-4}}),
  }}, seeds=(1,))
"""


@pytest.fixture
def file(tmp_path):
  """Writes the text of a study; its path."""

  def write(text: str) -> str:
    (tmp_path / 'study.py').write_text(text)
    return str(tmp_path / 'study.py')

  return write


class InThread:
  """A process of the runner's, as a call in the thread that waits for it."""

  def __init__(self, execute, run):
    self.error = functools.partial(execute, run)

  def stop(self) -> None:
    pass


def side_by_side(runs, execute, *, at_a_time, say=lambda text: None, ended=lambda results: None) -> None:
  start = functools.partial(InThread, execute)
  runner.side_by_side(runs, start, at_a_time=at_a_time, say=say, ended=ended)


def conduct(file: str, workdir: pathlib.Path, *, killed: str = '') -> list[str]:
  """Does the study with a fork for each run, of which `killed` gets SIGKILL at its first checkpoint; what it said."""
  study, said = definition.load(file), []

  def execute(run: definition.StudyRun) -> str:
    job = fork_server.start('vit_jax.study.job', file, str(workdir), run.title, cwd=workdir.parent)
    if run.title == killed:
      wait_until((run.folder / 'checkpoints/3').exists)
      job.send_signal(signal.SIGKILL)
    _, errors = job.communicate(120)
    return '' if job.wait() == 0 else errors or 'killed'

  runs = definition.runs(study, workdir)
  side_by_side(
    runs, execute, at_a_time=1, say=said.append, ended=lambda done: table.write(study, done, workdir)
  )
  return said


def accuracies(workdir: pathlib.Path) -> dict[str, dict[str, float]]:
  variants = json.loads((workdir / 'table.json').read_text())['variants']
  return {name: variant['seeds'] for name, variant in variants.items()}


@pytest.mark.nightly
def test_study_that_was_killed_goes_on_to_the_table_of_one_that_was_not(file, tmp_path):
  whole, workdir, file = tmp_path / 'whole', tmp_path / 'killed', file(STUDY)
  conduct(file, whole)
  shutil.copytree(whole / 'low/seed_1', workdir / 'low/seed_1')  # as of two jobs, of which one is killed
  with pytest.raises(UserError, match='1 of 2 runs failed; the first is high/seed_1: killed'):
    conduct(file, workdir, killed='high/seed_1')
  assert {name: list(seeds) for name, seeds in accuracies(workdir).items()} == {'high': [], 'low': ['1']}
  said = conduct(file, workdir)
  assert said[:2] == ['2 runs, of which 1 were done before; 1 at a time', 'high/seed_1: goes on']
  assert accuracies(workdir) == accuracies(whole)
  assert run_steps.logged(workdir / 'high/seed_1') == run_steps.logged(whole / 'high/seed_1')


ROUND = f"""{OPTIONS}
OPTIONS |= {{'model.heads': 2, 'model.pool': 'token', 'data.split': 'train[:50%]'}}
OTHERS = Unlabelled('digits:train[50%:]', Choice(top=3), weight=2.0)
VARIANTS = {{
  'teacher': Variant('quickstart', OPTIONS),
  'student': Variant('quickstart', OPTIONS, teacher='teacher', unlabelled=OTHERS),
}}

def get_study():
  return Study('Rounds', VARIANTS, seeds=(1,))
"""
ROUNDS = f"""{ROUND}
DISTILLATION = {{'objective.name': 'distillation', 'model.distillation_token': True}}
VARIANTS |= {{
  'student_of_student': Variant('quickstart', OPTIONS, teacher='student', unlabelled=OTHERS),
  'distilled': Variant('quickstart', OPTIONS | DISTILLATION, teacher='teacher'),
  'adapted': Variant('quickstart', {{'adapter.rank': 2}}, start='teacher'),
}}
"""


@pytest.fixture
def rounds(file) -> Study:
  return definition.load(file(ROUNDS))


def test_students_of_a_study_learn_from_the_run_of_their_teacher_with_the_same_seed(rounds, tmp_path):
  runs = {run.title.partition('/')[0]: run for run in definition.runs(rounds, tmp_path)}
  for name, teacher in (('student', 'teacher'), ('student_of_student', 'student'), ('distilled', 'teacher')):
    assert runs[name].teachers == (tmp_path / teacher / 'seed_1',)
  for name in ('student', 'student_of_student'):
    labelled = f'tfds:{tmp_path}/{name}/seed_1/labels/1.0.0:all'
    config = runs[name].config
    assert config.data.mixture == (('digits:train[:50%]', 1.0), (labelled, 2.0))
    assert config.data.max_labels == 3 and config.evaluators['test'].source == 'digits'
  assert runs['distilled'].config.objective.teachers == f'{tmp_path}/teacher/seed_1'
  assert not runs['distilled'].config.data.mixture


@pytest.mark.parametrize(
  'own',
  [
    {
      'data.mixture': (('digits:train[:30%]', 3.0), ('digits:train[30%:50%]', 1.0)),
      'evaluators.test.source': 'digits',
    },
    {'data.source': 'digits:train[:50%]'},
  ],
)
def test_a_student_trains_on_all_of_its_own_data_beside_what_is_labelled(rounds, own, tmp_path):
  student = rounds.variants['student']
  student = dataclasses.replace(student, options={**student.options, **own})
  study = dataclasses.replace(rounds, variants={**rounds.variants, 'student': student})
  (config,) = (run.config for run in definition.runs(study, tmp_path) if run.title == 'student/seed_1')
  parts, expected = config.data.mixture, own.get('data.mixture', (('digits:train[:50%]', 1.0),))
  assert parts[:-1] == expected
  assert parts[-1][1] == 2.0 * sum(weight for _, weight in expected)
  assert config.evaluators['test'].source == 'digits'


def test_an_averaged_teacher_is_the_runs_of_all_seeds(rounds, tmp_path):
  averaged = {
    name: dataclasses.replace(rounds.variants[name], averaged=True) for name in ('student', 'distilled')
  }
  study = dataclasses.replace(rounds, variants={**rounds.variants, **averaged}, seeds=(0, 1))
  runs = {run.title: run for run in definition.runs(study, tmp_path)}
  teachers = (tmp_path / 'teacher' / 'seed_0', tmp_path / 'teacher' / 'seed_1')
  for seed in study.seeds:
    assert runs[f'student/seed_{seed}'].teachers == teachers
    assert runs[f'student/seed_{seed}'].needed == set(teachers)
    assert runs[f'adapted/seed_{seed}'].config.init.checkpoint == str(teachers[seed])
    assert runs[f'distilled/seed_{seed}'].config.objective.teachers == ','.join(map(str, teachers))
    assert runs[f'student_of_student/seed_{seed}'].teachers == (tmp_path / 'student' / f'seed_{seed}',)
  labelling, _ = definition.command('student', study).split(' && ')
  assert '--teachers=teacher/seed_0,teacher/seed_1' in labelling
  assert '--config.objective.teachers=teacher/seed_0,teacher/seed_1' in definition.command('distilled', study)
  with pytest.raises(UserError, match=r'of other folds have learned .*; leave averaged out'):
    definition.runs(dataclasses.replace(study, folds=True), tmp_path)


def test_command_of_a_student_labels_its_images_first(rounds):
  labelling, training = definition.command('student', rounds).split(' && ')
  assert shlex.split(labelling) == [
    *('python', '-m', 'vit_jax.selftrain', '--teachers=teacher', '--workdir=labels_of_teacher', '--top=3'),
    'digits:train[50%:]',
  ]
  options = shlex.split(training)
  labelled = "(('digits:train[:50%]', 1.0), ('tfds:./labels_of_teacher/1.0.0:all', 2.0))"
  assert f'--config.data.mixture={labelled}' in options
  assert '--config.evaluators.test.source=digits' in options and '--config.data.max_labels=3' in options


@pytest.mark.nightly
def test_round_that_was_killed_goes_on_with_the_labels_of_its_teacher_to_a_table(file, tmp_path):
  workdir, file = tmp_path / 'rounds', file(ROUND)
  with pytest.raises(UserError, match='1 of 2 runs failed; the first is student/seed_1: killed'):
    conduct(file, workdir, killed='student/seed_1')
  labels = workdir / 'student/seed_1/labels'
  before = {path.name: path.read_bytes() for path in labels.glob('1.0.0/*')}
  assert before and conduct(file, workdir)[0].startswith('2 runs, of which 1 were done before')
  assert [list(seeds) for seeds in accuracies(workdir).values()] == [['1'], ['1']]
  assert {path.name: path.read_bytes() for path in labels.glob('1.0.0/*')} == before
  said = json.loads((labels / 'selftrain.json').read_text())
  assert said['teachers'] == [f'{workdir}/teacher/seed_1'] and said['images'].endswith('digits:train[50%:]')


@pytest.fixture
def ended(monkeypatch) -> list[str]:
  """Titles of the runs that have a result."""
  titles: list[str] = []
  monkeypatch.setattr(runner.Job, 'result', lambda run: result(0.5) if run.title in titles else None)
  return titles


def test_run_begins_when_the_one_that_it_starts_from_has_ended(tmp_path, ended):
  study = Study('x', {'first': Variant('quickstart'), 'second': Variant('quickstart', start='first')})
  runs = definition.runs(study, tmp_path)

  def execute(run: definition.StudyRun) -> str:
    for start in run.needed:
      first = f'first/seed_{run.config.seed}'
      assert run.config.init.checkpoint == str(start) == f'{tmp_path}/{first}' and first in ended
    if run.title == 'first/seed_1':
      return 'A sentence.'
    ended.append(run.title)
    return ''

  with pytest.raises(UserError, match='2 of 6 runs failed; the first is first/seed_1: A sentence'):
    side_by_side(runs, execute, at_a_time=3)
  assert sorted(ended) == ['first/seed_0', 'first/seed_2', 'second/seed_0', 'second/seed_2']


def test_run_that_waits_for_another_holds_no_place(tmp_path, ended):
  """Two places: while the first run of a chain is done, the run that needs none of them begins."""
  began: list[str] = []
  chain = {'first': Variant('quickstart'), 'second': Variant('quickstart', start='first')}
  study = Study('x', chain | {'alone': Variant('quickstart')}, seeds=(0,))
  alone = threading.Event()

  def execute(run: definition.StudyRun) -> str:
    began.append(run.title.partition('/')[0])
    if began[-1] == 'alone':
      alone.set()
    if began[-1] == 'first':
      assert alone.wait(60)
    ended.append(run.title)
    return ''

  runs = definition.runs(study, tmp_path)
  side_by_side(runs, execute, at_a_time=2)
  assert sorted(began[:2]) == ['alone', 'first'] and began[2] == 'second'


@pytest.mark.nightly
def test_command_goes_on_after_a_kill_that_ends_its_runs_too(file, tmp_path):
  file(STUDY.replace('seeds=(1,)', 'seeds=(0,)').replace("'low'", "# 'low'"))
  command = [sys.executable, '-m', 'vit_jax.study', 'study.py', '--workdir=out', '--jobs=1']
  environment = {**os.environ, 'PYTHONPATH': str(fork_server.ROOT), 'XLA_FLAGS': ''}
  process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
  wait_until((tmp_path / 'out/high/seed_0/checkpoints').exists, lambda: process.poll() is None)
  process.kill()
  process.wait()
  done = fork_server.run('vit_jax.study', *command[3:], cwd=tmp_path, environment={'XLA_FLAGS': ''})
  assert done.returncode == 0, done.stderr
  assert 'high/seed_0: goes on' in done.stdout and 'high/seed_0: done' in done.stdout
  text = (tmp_path / 'out/table.md').read_text()
  assert '| high ' in text and '9 %' in text and text in done.stdout
  with Image.open(tmp_path / 'out/table.png') as picture:
    assert picture.width >= 800


def result(accuracy: float) -> Result:
  return Result({'test/accuracy': accuracy}, 3e15, 90.0, 1, 'cpu', [])


def test_table_has_mean_deviation_and_every_seed(tmp_path):
  study = Study('A title', {'one': Variant('quickstart'), 'two': Variant('quickstart', published='7 %')})
  results = {'one/seed_0': result(0.5), 'one/seed_1': result(0.75), 'one/seed_2': result(1.0)}
  table.write(study, results, tmp_path)
  lines = [line for line in (tmp_path / 'table.md').read_text().splitlines() if line.startswith('|')]
  rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines]
  assert rows[2] == ['one', '75.00% ± 25.00%', '50.00%', '75.00%', '100.00%', '1.5', '3', '']
  assert rows[3] == ['two', 'not run yet', '', '', '', '', '', '7 %']
  values = json.loads((tmp_path / 'table.json').read_text())['variants']
  assert values['one']['mean'] == 0.75 and values['one']['deviation'] == 0.25
  assert values['two']['mean'] is None and values['two']['seeds'] == {}


def test_figure_over_an_axis_has_a_line_for_each_family_and_plain_numbers(tmp_path, monkeypatch):
  savefig = unittest.mock.Mock(wraps=table.Figure.savefig)
  monkeypatch.setattr(table.Figure, 'savefig', lambda *arguments, **options: savefig(*arguments, **options))
  places = (1.4e11, 5.7e11, 2.8e12)
  variants = {
    f'{line}_{at:g}': Variant('quickstart', line=line, at=at) for line in ('vit', 'resnet') for at in places
  }
  study = Study('Data', variants, seeds=(0,), axis='FLOPs')
  table.write(study, {f'{name}/seed_0': result(0.5) for name in variants}, tmp_path)
  (axes,) = savefig.call_args.args[0].axes
  assert [text.get_text() for text in axes.get_legend().get_texts()] == ['vit', 'resnet']
  labels = [label.get_text() for label in axes.get_xticklabels(which='both')]
  assert '1e+12' in labels and not any('$' in label for label in labels)
  with Image.open(tmp_path / 'table.png') as picture:
    assert picture.width == 800


def test_time_left_is_that_of_begun_runs_and_of_their_like(tmp_path):
  """A run of 100 steps a second apart is at step 40; the same with another seed, and one of half its time."""
  study = Study('x', {'slow': Variant('quickstart'), 'fast': Variant('quickstart')}, seeds=(0, 1))
  runs = definition.runs(study, tmp_path)
  assert runner.progress(runs, {}, 1) == '0 of 4 runs are done'
  for name, step_ms, left in (('slow/seed_0', 60_000, 3600), ('fast/seed_0', 30_000, 0)):
    (tmp_path / name).mkdir(parents=True)
    line = {'step': 60, 'perf/step_ms': step_ms, 'perf/eta_s': left}
    (tmp_path / name / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
  # An hour of slow/seed_0, two of slow/seed_1, half an hour of fast/seed_1.
  text = runner.progress(runs, {'fast/seed_0': result(math.nan)}, 1)
  assert text == '1 of 4 runs are done, about 3:30 h left'
  assert runner.progress(runs, {'fast/seed_0': result(0.5)}, 2).endswith('about 1:45 h left')


@pytest.mark.parametrize(
  ('variants', 'said'),
  [
    (
      {'a': Variant('quickstart', {'model.widht': 3})},
      "^An option of the variant 'a' is wrong: there is no model.widht; did you mean model.width\\?$",
    ),
    (
      {'a': Variant('quickstart', start='b'), 'b': Variant('quickstart')},
      "'b', which is no variant before it",
    ),
    (
      {'a': Variant('quickstart'), 'b': Variant('quickstart', teacher='a')},
      "teachers is an option of the objective 'distillation'",
    ),
    (
      {'a': Variant('quickstart', unlabelled=definition.Unlabelled('digits:train'))},
      "'a' has images without labels and no teacher; name the one",
    ),
    ({'a': Variant('quickstart', averaged=True)}, "'a' averages the seeds of a teacher and names none"),
  ],
)
def test_study_that_cannot_work_is_refused_before_it_begins(variants, said, tmp_path):
  with pytest.raises(UserError, match=said):
    definition.runs(Study('x', variants), tmp_path)


def test_studies_and_configs_are_not_taken_for_each_other(file):
  with pytest.raises(UserError, match='did you mean studies/poster'):
    config_files.find('postr', 'study')
  with pytest.raises(UserError, match="There is no config 'poster'"):
    config_files.find('poster')
  with pytest.raises(UserError, match='gives a int; write: return Study'):
    definition.load(file('def get_study():\n  return 3\n'))


def test_argument_of_a_study_that_it_does_not_have_is_said():
  with pytest.raises(UserError, match="The study has no 'mnist'; choose from cifar10, longer, digits"):
    definition.load('shape:mnist')
  with pytest.raises(UserError, match="The study poster takes no argument; leave ':digits' out"):
    definition.load('poster:digits')


def test_a_cross_validation_holds_out_another_fold_in_each_run_and_counts_all_images(tmp_path):
  study = dataclasses.replace(definition.load('kfold:3,quickstart'), title='Three folds')
  runs = definition.runs(study, tmp_path)
  assert [run.config.data.fold for run in runs] == ['1/3', '2/3', '3/3']
  assert {run.config.evaluators['test'].split for run in runs} == {'val'}
  results = {}
  for run, (right, images) in zip(runs[:2], ((90, 100), (48, 50)), strict=True):  # the third has not ended
    results[run.title] = result(right / images)
    (run.folder / 'report').mkdir(parents=True)
    report = {'images': images, 'metrics': {'accuracy': right / images}}
    (run.folder / 'report' / 'test.json').write_text(json.dumps(report))
  table.write(study, results, tmp_path)
  text = (tmp_path / 'table.md').read_text()
  # The interval is scipy's, of binomtest.
  assert 'fold 3/3' in text and '92.00% of 150 images (95% interval 86.54% to 95.36%)' in text
  first, second = results  # 300 images, and 301 after one came
  results[first] = results[first]._replace(images=200)
  results[second] = results[second]._replace(images=251)
  with pytest.raises(UserError, match=r'seed_0 is a fold of 300 images and .*seed_1 one of 301'):
    table.write(study, results, tmp_path)
  (name, variant), *_ = study.variants.items()  # of the rest of each fold only a part is trained on
  part = dataclasses.replace(variant, options={**variant.options, 'data.max_per_class': 20})
  more = dataclasses.replace(variant, teacher=name, unlabelled=definition.Unlabelled('digits:test'))
  for other in (part, more):  # or as many others as its teacher labels
    table.write(dataclasses.replace(study, variants={name: other}), results, tmp_path)
