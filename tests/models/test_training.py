"""Every architecture learns with the one trainer, on a mesh as on a single device."""

import chex
import jax
import numpy as np
import pytest
import run_steps
import tiny

from vit_jax import config as c
from vit_jax.foundation import pytrees
from vit_jax.models.base import ModelConfig
from vit_jax.training.run import Dataset, Run

MODELS = {
  'vit': tiny.options(
    pool='token_gap', register_tokens=2, layer_scale=0.5, activation='gelu', dropout=0.1, stochastic_depth=0.2
  ),
  'relative': tiny.options(position='relative', attention_dropout=0.1, remat='dots'),
  'relative_query': tiny.options(position='relative_query', pool='gap', register_tokens=1),
  'axial': tiny.options(
    pool='gap', axial=True, mlp='local', qk_norm=True, dropout=0.1, attention_dropout=0.1
  ),
  'hybrid': tiny.options(patch=1, stem_width=32, stem_blocks=(1, 1), dropout=0.1),
  'parts': tiny.options(
    **{
      'mlp': 'swiglu',
      'activation': 'silu',
      'mlp_sub_norm': True,
      'attention_sub_norm': True,
      'pre_norm': True,
    },
    **{
      'position': 'learned+rotary_mixed',
      'final_norm': 'pooled',
      'pool': 'gap_patches',
      'class_token': True,
    },
    **{'norm': 'rms_norm', 'patch_norm': True, 'dropout': 0.1, 'attention_dropout': 0.1, 'remat': 'dots'},
  ),
  'parallel': tiny.options(
    block='parallel', qk_norm=True, layer_scale=0.5, dropout=0.1, stochastic_depth=0.2
  ),
  'parallel_pairs': tiny.options(
    block='parallel_pairs', stochastic_depth=0.2, pool='map_patches', register_tokens=2
  ),
  'post_norm': tiny.options(block='post_norm', stochastic_depth=0.2, dropout=0.1, patch_dropout=0.5),
  'mixer': tiny.mixer(stochastic_depth=0.2),
  'gmlp': tiny.mixer(token_mixing='gate', stochastic_depth=0.2),
  'resmlp': tiny.mixer(token_mixing='linear', norm='affine', layer_scale=0.5),
  'resnet': tiny.resnet(blocks=(1,), remat='block'),
}
MESH = c.MeshConfig(data=2, fsdp=2, tensor=2, min_shard_size=1)


def _train(model: ModelConfig, mesh: c.MeshConfig):
  """(parameters before, after two steps, losses) on random images."""
  config = c.Config(
    total='4 steps',
    batch_size=8,
    model=model,
    data=c.DataConfig(image_size=(16, 16)),
    optimizer=c.OptimizerConfig(name='sgd', clip_norm=1.0),  # Adam makes full steps of rounding errors
    schedule=c.ScheduleConfig(learning_rate=0.1, decay='constant'),
    mesh=mesh,
  )
  devices = jax.devices()[: np.prod(mesh.sizes)]
  program = Run(config, Dataset(80, num_classes=6), devices).program
  seed = np.uint32(0)
  state = program.init.lower(seed).compile()(seed)
  step = program.step.lower(program.state, program.batch).compile()
  # The head begins at zero, so that nothing else would learn in the first step.
  kernel = state.params['head']['kernel']
  values = np.random.default_rng(1).normal(0, 0.1, kernel.shape).astype(np.float32)
  state.params['head']['kernel'] = jax.device_put(values, kernel.sharding)
  before, losses = jax.tree.map(np.asarray, state.params), []
  for number in range(2):
    state, metrics = step(state, run_steps.batch(program, number, 6))
    losses.append(float(metrics['train/loss']))
  return before, state.params, losses


@pytest.mark.nightly(but='parts')
@pytest.mark.slow
@pytest.mark.parametrize('kind', MODELS)
def test_two_steps_on_a_mesh_equal_one_device(kind):
  before, expected, expected_losses = _train(MODELS[kind], c.MeshConfig(data=1))
  _, params, losses = _train(MODELS[kind], MESH)
  np.testing.assert_allclose(losses, expected_losses, atol=1e-5)
  chex.assert_trees_all_close(params, expected, atol=2e-5)
  useless = ('key/bias', 'key_norm/bias')  # which add the same to all logits of a query
  old = pytrees.flatten(before)
  for name, leaf in pytrees.flatten(params).items():
    assert name.endswith(useless) or not np.array_equal(old[name], leaf), f'{name} has not learnt'
    if name.endswith('kernel'):
      assert not leaf.sharding.is_fully_replicated, f'{name} is not split'
