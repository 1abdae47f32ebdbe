"""The configs of a transfer's runs."""

import re

import pytest

from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import formats
from vit_jax.transfer import suites
from vit_jax.transfer.configs import PROBES, Configs, Settings


@pytest.mark.slow
@pytest.mark.parametrize('name', ['digits', 'vtab:dmlab'])
def test_sweeps_never_see_the_test_split_and_final_runs_take_the_recipe_on_the_whole_training_split(
  checkpoint, name
):
  row, configs = suites.row(name), Configs(Settings(str(checkpoint), image_size=8))
  sweep = configs.sweep(row, 0.01, scratch=False)
  assert (sweep.data.split, sweep.evaluators['test'].split) == (row.sweep_train, row.sweep_test)
  assert row.test not in (row.sweep_train, row.sweep_test)
  final = configs.final(row, 0.01, seed=2, scratch=False)
  assert (final.data.split, final.evaluators['test'].split, final.seed) == (row.train, row.test, 2)
  assert final.init.checkpoint and final.optimizer.name == 'sgd' and final.total == '2500 steps'
  assert final.model.sizes.width == 16  # the checkpoint's
  scratch = configs.final(row, 0.01, seed=2, scratch=True)
  assert scratch.init.checkpoint is None and scratch.optimizer.name == 'adam'
  assert scratch.total == final.total and scratch.model == final.model and scratch.data == final.data


def test_only_final_runs_on_imagenet_have_real_labels(checkpoint):
  configs, imagenet = Configs(Settings(str(checkpoint))), suites.PAPER['imagenet2012']
  assert configs.final(imagenet, 0.01, 0, scratch=False).evaluators['test'].real_labels == 'download'
  assert configs.sweep(imagenet, 0.01, scratch=False).evaluators['test'].real_labels is None
  cifar10 = configs.final(suites.PAPER['cifar10'], 0.01, 0, scratch=False)
  assert cifar10.evaluators['test'].real_labels is None


def test_probes_are_of_the_row_with_all_shots_at_the_checkpoints_own_size(checkpoint):
  row = suites.row('fewshot:digits')
  config = Configs(Settings(str(checkpoint), shots=(1, 0), seeds=2)).probe(row, scratch=False)
  assert sorted(config.evaluators) == sorted(PROBES)  # a ConfigDict has them in the order of their names
  assert config.data.image_size == formats.architecture(checkpoint).image_size == (8, 8)
  for name, evaluator in config.evaluators.items():
    assert evaluator.probe == name and evaluator.shots == (1, 0) and evaluator.seeds == 2
    assert (evaluator.source, evaluator.train_split, evaluator.split) == ('digits', 'train', 'test')


def test_options_are_set_in_all_runs(checkpoint):
  options = (('data.mixup', '0.2'), ('model.remat', 'block'))
  configs = Configs(Settings(str(checkpoint), image_size=8, options=options))
  row = suites.row('digits')
  for config in (
    configs.sweep(row, 0.01, scratch=False),
    configs.final(row, 0.01, 0, scratch=True),
    configs.probe(suites.row('fewshot:digits'), scratch=False),
  ):
    assert config.data.mixup == 0.2 and config.model.remat == 'block'


@pytest.mark.parametrize(
  ('option', 'flag'),
  [
    *(('seed=1', 'seeds'), ('total=5 epochs', 'steps'), ('batch_size=8', 'batch_size')),
    *(('schedule.learning_rate=0.1', 'rates'), ('schedule.warmup=0 steps', 'steps')),
    *(('data.split=test', 'suite'), ('data.image_size=(8, 8)', 'image_size')),
    *(('init.checkpoint=other', 'checkpoint'), ('init.weights=ema', 'weights')),
    *(('evaluators={}', 'suite'), ('evaluators.test.split=train', 'suite')),
    *(("data={'source': 'digits'}", 'suite'), ('init={}', 'checkpoint')),  # of which the options are parts
    ("data.mixture=(('digits:train', 1.0),)", 'suite'),
  ],
)
def test_option_that_a_transfer_sets_itself_is_refused_with_its_flag(option, flag):
  name, _, text = option.partition('=')
  with pytest.raises(UserError, match=rf'^--option={re.escape(option)} would .* use --{flag}\.$'):
    Settings('checkpoint', options=((name, text),))


@pytest.mark.parametrize('option', ['data.split_of', 'seeds', 'model.total', 'schedule.decay', 'init.head'])
def test_options_that_are_named_like_those_that_a_transfer_sets_are_taken(option):
  assert Settings('checkpoint', options=((option, 'x'),)).options == ((option, 'x'),)


@pytest.mark.parametrize(
  ('option', 'said'),
  [
    (
      ('data.mixxup', '1'),
      '^An option of --option is wrong: there is no data.mixxup; did you mean data.mixup?',
    ),
    (('data.mixup', 'much'), 'mixup.*much'),
  ],
)
def test_wrong_option_is_an_error(checkpoint, option, said):
  configs = Configs(Settings(str(checkpoint), options=(option,)))
  with pytest.raises(UserError, match=said):
    configs.final(suites.row('digits'), 0.1, 0, scratch=False)
