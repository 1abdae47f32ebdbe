"""Step 0 from a checkpoint: straight into a sharded state, and a whole fine-tuning by the real command."""

import dataclasses
import pathlib
import subprocess

import chex
import fork_server
import jax
import numpy as np
import pytest
import run_steps
from flax import nnx
from released_files import path, tensors

import vit_jax
from vit_jax import config as c
from vit_jax import recipes
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS
from vit_jax.training import initialization
from vit_jax.training.run import Dataset, Run

ROOT = pathlib.Path(__file__).parents[2]


def config(checkpoint, **changes) -> c.Config:
  base = c.Config(
    total='3 steps',
    batch_size=16,
    model=c.ViTConfig(variant='custom', patch=8, width=64, mlp_dim=128, depth=2, heads=4),
    init=c.InitConfig(checkpoint=str(checkpoint)),
    data=c.DataConfig(image_size=(48, 48), channels=1),
    mesh=c.MeshConfig(data=1, fsdp=4, tensor=2, min_shard_size=0),
  )
  return dataclasses.replace(base, **changes)


def started(config: c.Config):
  """(program, the state of step 0, what was said)."""
  run, arrays, said = read(config)
  state = initialization.initial_state(run.program, 0, arrays)
  assert not arrays  # none is held twice
  return run.program, state, said


def read(config: c.Config):
  """(the run, arrays of its checkpoint, what is said of them)."""
  run = Run(config, Dataset(100, num_classes=10))
  return run, *initialization.read_initial(config, run.architecture, run.dataset.class_names)


def test_sharded_state_holds_what_load_gives(golden):
  file = path(golden, 'c_vit_token_rep32')
  program, state, said = started(config(file, ema=0.9))
  model = vit_jax.load(file, image_size=48, num_classes=3)
  expected = pytrees.flatten(nnx.to_pure_dict(nnx.state(model.module)))
  found = pytrees.flatten(state.params)
  for name, array in found.items():
    assert array.sharding == pytrees.flatten(program.state.params)[name].sharding
    if name == 'patch_embedding/kernel':  # summed over colours
      np.testing.assert_allclose(array, np.asarray(expected[name]).sum(axis=2, keepdims=True), atol=1e-6)
    elif not name.startswith('head/'):
      np.testing.assert_array_equal(array, expected[name])
  assert not np.asarray(found['head/kernel']).any()
  assert len(found['blocks/mlp/dense_in/kernel'].addressable_shards) == 8
  assert found['blocks/mlp/dense_in/kernel'].addressable_shards[0].data.shape == (2, 16, 64)
  chex.assert_trees_all_equal(state.params, state.ema)
  pairs = zip(jax.tree.leaves(state.params), jax.tree.leaves(state.ema), strict=True)
  assert all(one is not other for one, other in pairs)
  assert 'resized: patch_embedding/kernel (8, 8, 3, 64) → (8, 8, 1, 64)' in said
  assert 'reinitialised: head/bias (10,), head/kernel (64, 10)' in said
  jax.block_until_ready(state)


@pytest.mark.slow
def test_a_checkpoint_of_another_function_is_refused(golden, tmp_path):
  pretrained = formats.read(path(golden, 'a_vit_token'), told={'activation': 'gelu'})
  FORMATS['run']().write(pretrained, tmp_path / 'run')
  with pytest.raises(
    UserError,
    match=r"activation 'gelu', and config.model.activation is 'gelu_tanh'; set --config.model.activation=gelu",
  ):
    read(config(tmp_path / 'run'))
  with_erf = config(tmp_path / 'run')
  with_erf = dataclasses.replace(with_erf, model=dataclasses.replace(with_erf.model, activation='gelu'))
  assert 'loaded' in read(with_erf)[-1]
  # An .npz cannot tell: the config's word is taken.
  npz = dataclasses.replace(with_erf, init=c.InitConfig(checkpoint=str(path(golden, 'a_vit_token'))))
  assert 'loaded' in read(npz)[-1]


def test_other_pixel_values_are_noted(golden):
  file = path(golden, 'a_vit_token')
  assert 'config.data.mean' not in read(config(file))[-1]
  unit = config(file, data=c.DataConfig(image_size=(48, 48), channels=1, mean=(0.0,), std=(1.0,)))
  assert 'config.data.mean is (0.0,)' in read(unit)[-1]


def test_fine_tuning_begins_from_the_released_checkpoint_of_its_model(golden):
  for model, variant, checkpoint in (
    ('b16', 'B/16', 'imagenet21k/ViT-B_16'),
    ('H/14', 'H/14', 'imagenet21k/ViT-H_14'),
    ('r50+l32', 'R50+L/32', 'imagenet21k/R50+ViT-L_32'),
    ('r+ti16', 'R+Ti/16', 'augreg/R_Ti_16'),
  ):
    found = recipes.finetuning(model, 'cifar10')
    assert (found.model.variant, found.init.checkpoint) == (variant, checkpoint)
    assert found.data.image_size == ((378, 378) if model == 'H/14' else (384, 384))
  file = str(path(golden, 'd1_hybrid_1_1_w05'))
  own = recipes.finetuning(file, 'cifar10')
  assert own.init.checkpoint == file and own.model.stem_blocks == (1, 1) and own.model.width == 64
  with pytest.raises(UserError, match="No released checkpoint of 'g14' is known; choose one of B/16"):
    recipes.finetuning('g14', 'cifar10')


def train(cwd: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
  return fork_server.run('vit_jax.main', *flags, cwd=cwd)


@pytest.mark.slow
def test_fine_tuning_by_the_real_command(golden, tmp_path):
  """configs/finetune.py with a file as its model, on digits, at another resolution; then resumed."""
  flags = [
    f'--config={ROOT}/configs/finetune.py:{path(golden, "c_vit_token_rep32")},digits:,paper',
    '--config.data.image_size=(48,48)',
    '--config.batch_size=16',
    '--config.evaluators.test.split=test',
    '--config.schedule.warmup=1 steps',
    '--config.log_every=1 steps',
    '--workdir=run',
  ]
  result = train(tmp_path, *flags, '--config.total=3 steps')
  assert result.returncode == 0, result.stdout + result.stderr
  assert 'resized: position_embedding (1, 17, 64) → (1, 37, 64) (linear, 4 × 4 → 6 × 6)' in result.stdout
  assert 'ignored: head/bias (10,), head/kernel (32, 10), pre_logits/bias' in result.stdout
  assert run_steps.logged(tmp_path / 'run')[1]['train/loss'] == pytest.approx(
    np.log(10), abs=1e-4
  )  # a head of zeros
  trained = formats.read(tmp_path / 'run')
  assert trained.class_names == tuple('0123456789')
  assert trained.params['head']['kernel'].any()
  source = tensors(path(golden, 'c_vit_token_rep32'))['embedding/kernel']
  moved = np.abs(trained.params['patch_embedding']['kernel'] - source).max()
  assert 0 < moved < 0.1
  again = train(tmp_path, *flags, '--config.total=3 steps')
  assert again.returncode == 0, again.stdout + again.stderr
  assert 'Parameters from' not in again.stdout
