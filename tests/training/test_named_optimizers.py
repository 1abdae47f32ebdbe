"""LAMB and Adafactor on stacks of blocks as optax's own on one block after the other; new optimizers sharded and resumed."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from vit_jax import config as c
from vit_jax.foundation import pytrees
from vit_jax.training.optimizer import make_optimizer

DEPTH = 3
SHAPES = {
  'blocks/mlp/dense_in/kernel': (DEPTH, 40, 48),
  'blocks/norm/scale': (DEPTH, 40),
  'text_tower/blocks/mlp/dense_in/kernel': (DEPTH, 33, 36),
  'head/kernel': (40, 7),
  'head/bias': (7,),
}


def drawn(seed):
  rng = np.random.default_rng(seed)
  return {path: rng.normal(size=shape).astype(np.float32) for path, shape in SHAPES.items()}


def unstacked(flat):
  """Each block's part of a stack as a parameter of its own."""
  result = {}
  for path, leaf in flat.items():
    parts = enumerate(leaf) if 'blocks/' in path else [('', leaf)]
    result |= {f'{path}|{number}': part for number, part in parts}
  return result


def after(tx, params, gradients):
  state = tx.init(params)
  for grads in gradients:
    updates, state = tx.update(grads, state, params)
    params = optax.apply_updates(params, jax.tree.map(lambda update: -0.1 * update, updates))
  return params


@pytest.mark.parametrize('name', ['lamb', 'adafactor'])
def test_a_stack_of_blocks_is_stepped_as_optax_steps_each_block(name):
  decay = optax.add_decayed_weights(
    0.3, mask=lambda params: {path: path.split('|')[0].endswith('kernel') for path in params}
  )
  theirs = {
    'lamb': optax.chain(optax.scale_by_adam(eps=1e-6), decay, optax.scale_by_trust_ratio()),
    'adafactor': optax.chain(
      optax.adafactor(None, min_dim_size_to_factor=32, multiply_by_parameter_scale=False, momentum=0.9),
      optax.scale(-1.0),
      decay,
    ),
  }
  params, gradients = drawn(0), [drawn(seed) for seed in (1, 2, 3)]
  params['head/bias'] *= 0  # without a norm: its ratio is 1
  nested = pytrees.unflatten(params)
  ours = make_optimizer(c.OptimizerConfig(name=name, weight_decay=0.3), nested)
  got = pytrees.flatten(after(ours, nested, map(pytrees.unflatten, gradients)))
  expected = after(theirs[name], unstacked(params), map(unstacked, gradients))
  chex.assert_trees_all_close(unstacked(got), expected, rtol=2e-5, atol=1e-6)


def test_adafactor_keeps_rows_and_columns_of_kernels():
  params = pytrees.unflatten(drawn(0))
  state = make_optimizer(c.OptimizerConfig(name='adafactor', momentum_dtype='bfloat16'), params).init(params)
  own = {leaf.shape for path, leaf in pytrees.flatten(state).items() if 'dense_in' in path and '/v_' in path}
  assert own >= {(DEPTH, 40), (DEPTH, 48)}
  assert {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.shape == (DEPTH, 40, 48)} == {jnp.dtype('bfloat16')}
