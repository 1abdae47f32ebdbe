"""Runs of a transfer that have ended, and the choice of a rate."""

import dataclasses
import json
import math
import os
import shutil

import pytest
import tiny

from vit_jax import config as c
from vit_jax.foundation.errors import NotFinite, UserError
from vit_jax.pretrained import formats
from vit_jax.training import preprocessing, results
from vit_jax.training.resume import claim
from vit_jax.transfer import lines

CONFIG = preprocessing.resolved(
  c.Config(total='3 steps', evaluators={'test': c.ClassificationEvaluatorConfig()})
)


def test_run_that_has_ended_is_not_done_again(tmp_path):
  """Its metrics come back as they were, one that is not a number too."""
  metrics = {'test/accuracy': 0.5, 'test/loss': math.nan}
  with claim(CONFIG, tmp_path, begun=False, takeover=False):
    pass
  results.write(results.Result(metrics, 1e9, 2.0, 8, 'TPU v3', ['a note']), tmp_path)
  known = results.train(CONFIG, tmp_path, keep=True)
  assert known._replace(metrics={}) == results.Result({}, 1e9, 2.0, 8, 'TPU v3', ['a note'])
  assert known.metrics['test/accuracy'] == 0.5 and math.isnan(known.metrics['test/loss'])


def test_results_of_what_a_checkpoint_held_before_are_not_put_beside_new_ones(golden, tmp_path):
  file = tmp_path / 'model.npz'
  shutil.copy(golden / 'b_vit_gap.released.npz', file)
  config = dataclasses.replace(CONFIG, init=c.InitConfig(checkpoint=str(file)))
  with claim(config, tmp_path / 'run', begun=False, takeover=False):
    pass
  result = results.Result({}, 1e9, 2.0, 8, 'TPU v3', [], begun_from=results.contents(config))
  results.write(result, tmp_path / 'run')
  os.utime(file)  # the same again
  assert results.read(config, tmp_path / 'run') == result
  shutil.copy(golden / 'c_vit_token_rep32.released.npz', file)
  with pytest.raises(UserError, match=r'began from .*model\.npz, which holds something else now'):
    results.read(config, tmp_path / 'run')
  file.unlink()
  assert results.read(config, tmp_path / 'run') == result


@pytest.mark.parametrize(
  'changed', ['base/model.safetensors', 'base/config.json', 'adapter/adapter_model.safetensors']
)
def test_what_is_read_beside_a_checkpoints_file_is_of_its_contents(changed, tmp_path):
  texts = {
    'base/model.safetensors': 'numbers',
    'base/config.json': '{"model_type": "vit"}',
    'adapter/adapter_model.safetensors': 'numbers',
    'adapter/adapter_config.json': json.dumps({'base_model_name_or_path': str(tmp_path / 'base')}),
  }
  for name, text in texts.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
  sources = [tmp_path / 'adapter', tmp_path / 'base', tmp_path / 'base/model.safetensors']
  before = [formats.contents(source) for source in sources]
  assert before == [formats.contents(source) for source in sources]
  (tmp_path / changed).write_text(texts[changed] + ' ')
  differ = [old != formats.contents(source) for old, source in zip(before, sources, strict=True)]
  assert differ == [True, *(2 * ['base' in changed])]


def test_one_of_several_files_has_the_contents_of_all(tmp_path):
  names = [f'model-0000{number}-of-00002.safetensors' for number in (1, 2)]
  index = {'weight_map': {name: name for name in names}}
  (tmp_path / 'model.safetensors.index.json').write_text(json.dumps(index))
  (tmp_path / 'config.json').write_text('{"model_type": "vit"}')
  for name in names:
    (tmp_path / name).write_text('numbers')
  before = formats.contents(tmp_path / names[0])
  (tmp_path / names[1]).write_text('others')
  assert formats.contents(tmp_path / names[0]) != before


def test_rate_is_chosen_by_accuracy_then_by_loss_and_a_loss_that_is_no_number_loses():
  ranked = [(0.6, 1.0), (0.6, 1.5), (0.6, math.nan), (0.5, 2.0)]
  metrics = [{'test/accuracy': accuracy, 'test/loss': loss} for accuracy, loss in ranked]
  assert sorted([metrics[k] for k in (2, 0, 3, 1)], key=lines._score, reverse=True) == metrics


def test_run_whose_loss_is_not_finite_ends_without_results_where_it_may(tmp_path):
  config = dataclasses.replace(
    CONFIG,
    total='60 steps',
    batch_size=16,
    nonfinite='skip',
    model=tiny.options(pool='gap', depth=1),
    data=dataclasses.replace(CONFIG.data, image_size=(8, 8), channels=1),
    schedule=c.ScheduleConfig(learning_rate=1e20, decay='constant'),
  )
  with pytest.raises(NotFinite, match='is not finite, as in'):
    results.train(config, tmp_path / 'one', keep=False)
  for _ in range(2):  # the second time from its result
    ended = results.train(config, tmp_path / 'other', keep=False, may_diverge=True)
    assert math.isnan(ended.metrics['test/accuracy']) and math.isnan(ended.metrics['test/loss'])
  good = {'test/accuracy': 0.1, 'test/loss': 9.0}
  assert max([ended.metrics, good], key=lines._score) is good
