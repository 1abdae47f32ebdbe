"""--mode=eval of models that no run has trained."""

import numpy as np
import pytest
import teachers

from vit_jax import config as c
from vit_jax.evaluation.base import EMA_SUFFIX
from vit_jax.training import evaluate_checkpoint, resume


@pytest.mark.parametrize('total', ['10 epochs', '3 steps'])
def test_a_model_that_convert_wrote_is_evaluated_by_any_config_of_its_model(total, tmp_path):
  teachers.write(tmp_path / 'run', class_names=tuple('0123456789'))
  stored = resume.stored_config(tmp_path / 'run')
  config = c.Config(
    total=total,
    model=stored.model,
    data=stored.data,
    evaluators={'test': c.ClassificationEvaluatorConfig(source='digits')},
    schedule=c.ScheduleConfig(warmup='1 epochs'),
  )
  scores = evaluate_checkpoint.evaluate_newest(config, tmp_path / 'run')
  assert 0 <= scores['test/accuracy'] <= 1 and np.isfinite(scores['test/loss'])
  assert not any(EMA_SUFFIX in name for name in scores)
