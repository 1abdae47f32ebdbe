"""The metric that a study compares: one that its variants give, whatever evaluator it is of."""

import json

import pytest

from vit_jax.foundation.errors import UserError
from vit_jax.study import definition, table
from vit_jax.study.definition import Study, Variant
from vit_jax.training.results import Result

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
  ['test/calibration_error', 'test_ema/accuracy', 'probe_all/accuracy', 'probe_ema_5shot/deviation'],
)
def test_metric_that_an_evaluator_gives_is_taken(metric, config, tmp_path):
  study = Study('x', {'a': Variant(config)}, seeds=(0,), metric=metric)
  assert metric in definition.runs(study, tmp_path)[0].config.metric_names()


@pytest.mark.parametrize('metric', ['test/acuracy', 'test', 'test/real_accuracy', 'probe_10shot/accuracy'])
def test_metric_that_no_evaluator_gives_is_refused_with_those_that_there_are(metric, config, tmp_path):
  study = Study('x', {'a': Variant(config)}, metric=metric)
  said = f"^The variant 'a' measures no '{metric}'; choose .* probe_5shot/accuracy, .* test/accuracy, "
  with pytest.raises(UserError, match=said):
    definition.runs(study, tmp_path)


def test_ema_is_a_metric_only_of_runs_that_have_one_and_evaluators_are_needed(config, tmp_path):
  with pytest.raises(UserError, match="'a' measures no 'test/accuracy', for it has no evaluators"):
    definition.runs(Study('x', {'a': Variant('masked_patch:imagenet2012')}), tmp_path)
  variants = {'a': Variant(config), 'b': Variant(config, {'ema': 0.0})}
  with pytest.raises(UserError, match=r"^The variant 'b' measures no 'test_ema/accuracy'"):
    definition.runs(Study('x', variants, metric='test_ema/accuracy'), tmp_path)


@pytest.mark.parametrize('metric', ['probe_5shot/accuracy', 'test_ema/loss', 'test/loss'])
def test_table_has_the_metric_that_is_compared(metric, config, tmp_path):
  study = Study('x', {'a': Variant(config)}, seeds=(0,), metric=metric)
  (run,) = definition.runs(study, tmp_path)
  metrics = {name: number / 64 for number, name in enumerate(sorted(run.config.metric_names()))}
  table.write(study, {run.title: Result(metrics, 3e15, 90.0, 1, 'cpu', [])}, tmp_path)
  assert json.loads((tmp_path / 'table.json').read_text())['variants']['a']['mean'] == metrics[metric]


def test_run_that_has_ended_without_the_metric_is_a_sentence(tmp_path):
  study = Study('x', {'a': Variant('quickstart')}, metric='test/top_5_accuracy')
  ended = {'a/seed_1': Result({'test/accuracy': 0.5}, 3e15, 90.0, 1, 'cpu', [])}
  said = (
    "^The run a/seed_1 has ended without 'test/top_5_accuracy', .* choose one of test/accuracy, or remove"
  )
  with pytest.raises(UserError, match=said):
    table.write(study, ended, tmp_path)
