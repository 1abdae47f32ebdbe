"""State of a model that is no parameter, such as running statistics: in training, checkpoints, teachers and files."""

import dataclasses
import json

import batch_norm_model
import chex
import jax
import numpy as np
import pytest
import run_steps
from flax import nnx

import vit_jax
from vit_jax import config as c
from vit_jax.evaluation import logistic
from vit_jax.foundation import pytrees
from vit_jax.models.base import MODELS
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS
from vit_jax.training import initialization, loop
from vit_jax.training.evaluate_checkpoint import evaluate_newest
from vit_jax.training.run import Dataset, Run
from vit_jax.training.step import model_inputs

pytestmark = pytest.mark.slow

SGD = c.OptimizerConfig(name='sgd', clip_norm=1.0)  # Adam makes full steps of rounding errors
CONFIG = batch_norm_model.options(optimizer=SGD)
MOMENTUM = 0.9


def run_of(config: c.Config, devices=1) -> Run:
  return Run(config, Dataset(160, num_classes=10), jax.devices()[:devices])


def trained(config: c.Config, steps: int, devices=1):
  """The state before and after each step, as NumPy arrays."""
  program = run_of(config, devices).program
  states = [program.init(np.uint32(0))]
  step = program.step.lower(program.state, program.batch).compile()
  for number in range(steps):
    previous = states[-1]
    states[-1] = jax.tree.map(np.array, previous)
    states.append(step(previous, run_steps.batch(program, number))[0])
  return [jax.tree.map(np.array, state) for state in states]


@pytest.fixture(scope='module', autouse=True)
def registered():
  """The model has its name for these tests only."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(MODELS._entries, batch_norm_model.NAME, batch_norm_model.NormedConfig)
    yield


@pytest.fixture(scope='module')
def one_device():
  return trained(CONFIG, 10)


def test_statistics_are_state_and_get_no_gradient_nor_optimizer_state(one_device):
  state = one_device[0]
  assert set(pytrees.flatten(state.model_state)) == {
    f'block{b}/norm/{name}' for b in (0, 1) for name in ('mean', 'var')
  }
  assert not any(path.endswith(('mean', 'var')) for path in pytrees.flatten(state.params))
  assert not any('norm/mean' in path for path in pytrees.flatten(state.opt_state))
  assert set(pytrees.flatten(state.ema)) == set(pytrees.flatten(state.params)) | set(
    pytrees.flatten(state.model_state)
  )


def test_a_step_moves_the_statistics_by_those_of_its_images():
  """Against NumPy; microbatches, of every second row, come one after the other."""
  config, accumulation = dataclasses.replace(CONFIG, accumulation=2), 2
  before, after = trained(config, 1)
  program = run_of(config).program
  model = nnx.merge(program.graphdef, before.variables)
  images = model_inputs(config, run_steps.batch(program, 0), 0)['image']
  x = np.asarray(model.block0.conv(model.root(images)), np.float64)
  mean, var = np.zeros(16), np.ones(16)
  for part in (x[row::accumulation].reshape(-1, 16) for row in range(accumulation)):
    mean = MOMENTUM * mean + (1 - MOMENTUM) * part.mean(axis=0)
    var = MOMENTUM * var + (1 - MOMENTUM) * part.var(axis=0, ddof=1)
  np.testing.assert_allclose(after.model_state['block0']['norm']['mean'], mean, atol=1e-6)
  np.testing.assert_allclose(after.model_state['block0']['norm']['var'], var, atol=1e-6)


def test_ten_steps_are_the_same_on_eight_devices(one_device):
  mesh = c.MeshConfig(data=-1, fsdp=2, min_shard_size=1)
  state, expected = trained(dataclasses.replace(CONFIG, mesh=mesh), 10, 8)[-1], one_device[-1]
  for part in ('model_state', 'params', 'ema'):
    chex.assert_trees_all_close(getattr(state, part), getattr(expected, part), atol=2e-6, rtol=2e-6)


def test_ema_averages_the_statistics_too(one_device):
  expected = one_device[0].variables
  for state in one_device[1:4]:
    expected = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, expected, state.variables)
  chex.assert_trees_all_close(one_device[3].ema, expected, atol=1e-6)
  assert (
    abs(expected['block1']['norm']['mean'] - one_device[3].model_state['block1']['norm']['mean']).max() > 1e-3
  )


def test_a_step_that_is_not_finite_keeps_the_old_state():
  program = run_of(CONFIG).program
  state = program.init(np.uint32(0))
  bias = state.params['head']['bias']
  state.params['head']['bias'] = jax.device_put(np.full(bias.shape, np.nan, np.float32), bias.sharding)
  before = jax.tree.map(np.array, (state.model_state, state.ema))
  after, metrics = program.step(state, run_steps.batch(program, 0))
  assert not metrics['finite']
  chex.assert_trees_all_equal(jax.tree.map(np.array, (after.model_state, after.ema)), before)


def fitted(parts, classes, **options):
  """In place of a logistic regression, which takes its time."""
  values = np.concatenate([part.values for part in parts])
  assert np.isfinite(values).all()
  kernel = np.zeros((values.shape[1], classes), np.float32)
  return logistic.Head(kernel, np.zeros(classes, np.float32), 1.0, 0.5)


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run of the trainer with everything on that reads a model: evaluators, probe, histograms, growing images."""
  folder = tmp_path_factory.mktemp('runs') / 'run'
  config = batch_norm_model.options(
    total='12 steps',
    init=c.InitConfig(head='probe'),
    evaluators={
      'test': c.ClassificationEvaluatorConfig(split='test'),
      'shots': c.FewShotEvaluatorConfig(split='test', shots=(1,)),
    },
    tensorboard=c.TensorBoardConfig(histograms='6 steps'),
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(logistic, 'head', fitted)
    loop.train(config, folder)
  return folder


@pytest.mark.nightly
def test_a_run_is_evaluated_as_it_was_in_training(workdir):
  config = c.from_config_dict(json.loads((workdir / 'config.json').read_text()))
  scores = evaluate_newest(config, workdir)
  expected = run_steps.logged(workdir)[-1]
  assert {'test/accuracy', 'test_ema/accuracy', 'test/loss', 'test_ema/loss'} <= scores.keys()
  for name, value in scores.items():
    assert value == expected[name], name
  assert scores['test/loss'] != scores['test_ema/loss']


def test_a_run_is_loaded_with_its_state_and_converted_bit_for_bit(workdir, tmp_path, weights='ema'):
  found = formats.read(workdir, weights=weights)
  arrays = pytrees.flatten(found.params)
  assert arrays.keys() == found.architecture.shapes().keys()
  assert abs(arrays['block0/norm/mean']).max() > 0.01
  FORMATS['run']().write(found, tmp_path / 'copy')
  back = pytrees.flatten(formats.read(tmp_path / 'copy').params)
  assert back.keys() == arrays.keys()
  for path, array in arrays.items():
    np.testing.assert_array_equal(back[path], array, strict=True)
  model, images = vit_jax.load(workdir, weights=weights), np.ones((2, 8, 8, 1), np.float32)
  before = nnx.to_pure_dict(nnx.state(model.module))
  np.testing.assert_array_equal(model(images), vit_jax.load(tmp_path / 'copy')(images))
  chex.assert_trees_all_equal(nnx.to_pure_dict(nnx.state(model.module)), before)
  parameters = sum(leaf.size for path, leaf in arrays.items() if not path.endswith(('mean', 'var')))
  assert f'{parameters:,} parameters' in repr(model)


def test_fine_tuning_begins_with_the_statistics_of_the_checkpoint(workdir):
  init = c.InitConfig(checkpoint=str(workdir), weights='raw', reinitialise=('^head/', '^block1/norm/mean$'))
  run = run_of(dataclasses.replace(CONFIG, init=init), 2)
  arrays, report = initialization.read_initial(run.config, run.architecture, run.dataset.class_names)
  assert 'block1/norm/mean' in report
  expected = dict(arrays)
  state = initialization.initial_state(run.program, 0, arrays)
  jax.tree.map(
    lambda leaf, wanted: chex.assert_equal(leaf.sharding, wanted.sharding), state, run.program.state
  )
  flat = pytrees.flatten(state.variables)
  for path in flat.keys() - {'head/kernel', 'head/bias', 'block1/norm/mean'}:
    np.testing.assert_array_equal(flat[path], expected[path])
  np.testing.assert_array_equal(flat['block1/norm/mean'], np.zeros(16))
  chex.assert_trees_all_equal(state.ema, state.variables)


def test_a_teacher_with_state_predicts_as_loaded_and_is_left_as_it_is(workdir):
  objective = c.DistillationObjective(teachers=str(workdir), teacher_weight=1.0)
  run = run_of(dataclasses.replace(CONFIG, objective=objective), 2)
  frozen, _ = run.frozen.read(())
  before = jax.tree.map(np.array, frozen)
  state, batch = run.program.init(np.uint32(0)), run_steps.batch(run.program, 0)
  images = np.asarray(model_inputs(run.config, batch, 0)['image'])
  _, metrics = run.program.step(state, batch, frozen)
  # The head begins at zero: the student says 1/10, and the divergence is log 10 less the teacher's entropy.
  shares = np.asarray(jax.nn.softmax(vit_jax.load(workdir, weights='raw')(images)), np.float64)
  expected = np.log(10) + (shares * np.log(shares)).sum(axis=1).mean()
  np.testing.assert_allclose(metrics['train/loss'], expected, atol=1e-5)
  chex.assert_trees_all_equal(jax.tree.map(np.array, frozen), before)
