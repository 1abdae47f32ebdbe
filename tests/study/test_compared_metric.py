"""The metric that a study compares: one that its variants give, whatever evaluator it is of."""

import dataclasses
import json
import pathlib

import fork_server
import pytest

from vit_jax.foundation.errors import UserError
from vit_jax.study import definition, table
from vit_jax.study.definition import Study, Variant
from vit_jax.training.results import Result

SHORT = {
  'total': '2 steps',
  'batch_size': 16,
  'log_every': '2 steps',
  'tensorboard.pictures': False,
  'model.depth': 1,
  'model.width': 16,
  'model.mlp_dim': 16,
}
STUDY = f"""
import pathlib

from vit_jax.study.definition import Study, Variant

CONFIG = str(pathlib.Path(__file__).with_name('config.py'))

def get_study():
  return Study('A probe', {{'one': Variant(CONFIG, {SHORT})}}, seeds=(0,))
"""
CONFIG = """
from vit_jax.config import *

def get_config():
  return to_config_dict(Config(
    model=ViTConfig(variant='custom', patch=4, heads=2),
    data=DataConfig(source='digits', image_size=(8, 8)),
    evaluators={
      'test': ClassificationEvaluatorConfig(),
      'probe': FewShotEvaluatorConfig(shots=(5, 0), seeds=2),
    },
    ema=0.9,
  ))
"""


@pytest.fixture
def config(tmp_path) -> str:
  path = tmp_path / 'config.py'
  path.write_text(CONFIG)
  return str(path)


@pytest.mark.parametrize(
  'metric',
  [
    *('test/accuracy', 'test/loss', 'test/top_5_accuracy', 'test/calibration_error', 'test_ema/accuracy'),
    *('probe_5shot/accuracy', 'probe_all/accuracy', 'probe_5shot/deviation', 'probe_ema_5shot/accuracy'),
  ],
)
def test_metric_that_an_evaluator_gives_is_taken(metric, config, tmp_path):
  study = Study('x', {'a': Variant(config)}, seeds=(0,), metric=metric)
  assert metric in definition.runs(study, tmp_path)[0].config.metric_names()


@pytest.mark.parametrize(
  'metric',
  [
    *('test/acuracy', 'test', 'accuracy', 'tset/accuracy', 'test/real_accuracy'),
    *('probe/accuracy', 'probe_10shot/accuracy', 'probe_5shot/loss', 'test_average/accuracy'),
  ],
)
def test_metric_that_no_evaluator_gives_is_refused_with_those_that_there_are(metric, config, tmp_path):
  study = Study('x', {'a': Variant(config)}, metric=metric)
  said = f"^The variant 'a' measures no '{metric}'; choose .* probe_5shot/accuracy, .* test/accuracy, "
  with pytest.raises(UserError, match=said):
    definition.runs(study, tmp_path)


def test_ema_is_a_metric_only_of_runs_that_have_one(config, tmp_path):
  variants = {'a': Variant(config), 'b': Variant(config, {'ema': 0.0})}
  with pytest.raises(UserError, match=r"^The variant 'b' measures no 'test_ema/accuracy'"):
    definition.runs(Study('x', variants, metric='test_ema/accuracy'), tmp_path)


def test_table_has_the_metric_of_probes_and_of_the_ema(config, tmp_path):
  file = pathlib.Path(config).with_name('study.py')
  file.write_text(STUDY)
  study, workdir = definition.load(str(file)), tmp_path / 'runs'
  job = fork_server.run('vit_jax.study.job', str(file), str(workdir), 'one/seed_0', cwd=tmp_path)
  assert job.returncode == 0, job.stderr

  def mean(metric: str) -> float:
    """The table's figure."""
    compared = dataclasses.replace(study, metric=metric)
    (run,) = definition.runs(compared, workdir)
    table.write(compared, {run.title: run.result()}, workdir)
    return json.loads((workdir / 'table.json').read_text())['variants']['one']['mean']

  found = {metric: mean(metric) for metric in ('probe_5shot/accuracy', 'test_ema/loss', 'test/loss')}
  last = json.loads((workdir / 'one/seed_0/metrics.jsonl').read_text().splitlines()[-1])
  assert found == {metric: last[metric] for metric in found}


def test_run_that_has_ended_without_the_metric_is_a_sentence(tmp_path):
  study = Study('x', {'a': Variant('quickstart')}, metric='test/top_5_accuracy')
  ended = {'a/seed_1': Result({'test/accuracy': 0.5}, 3e15, 90.0, 1, 'cpu', [])}
  said = (
    "^The run a/seed_1 has ended without 'test/top_5_accuracy', .* choose one of test/accuracy, or remove"
  )
  with pytest.raises(UserError, match=said):
    table.write(study, ended, tmp_path)
