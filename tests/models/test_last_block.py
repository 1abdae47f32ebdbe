"""Unrolled blocks: the last computes only what the head reads."""

import chex
import jax
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx

HIDDEN = 40  # units of an MLP; no other array has so many
KEYS = jax.random.split(jax.random.key(0, impl='threefry2x32'), 3)
DROP = {'dropout': 0.3, 'stochastic_depth': 0.4}
READ = {  # what the last block computes of 3 images
  'token': ({}, 1),
  'one block': ({'depth': 1}, 1),
  'registers and LayerScale': ({'register_tokens': 3, 'layer_scale': 0.1, 'pre_logits_size': 24}, 1),
  'distillation token': ({'distillation_token': True, 'register_tokens': 2}, 2),
  'query-key norm': ({'qk_norm': True}, 1),
}
WHOLE = {
  'mean of the tokens': {'pool': 'gap', 'class_token': True},
  'relative positions': {'position': 'relative_query'},
  'rotary positions': {'position': 'rotary'},
  'locality': {'mlp_locality': True},
}


def _hidden_tokens(graphdef, params, x) -> set[int]:
  """How many tokens have hidden units in the MLPs of a forward pass."""
  program = jax.make_jaxpr(lambda params, x: nnx.merge(graphdef, params)(x))(params, x)
  products = (eqn for eqn, _ in tiny.equations(program.jaxpr) if eqn.primitive.name == 'dot_general')
  shapes = [product.outvars[0].aval.shape for product in products]
  return {shape[1] for shape in shapes if len(shape) == 3 and shape[2] == HIDDEN}


@pytest.mark.slow
@pytest.mark.parametrize('options, read', READ.values(), ids=READ)
def test_unrolled_the_last_block_computes_only_what_the_head_reads(options, read):
  model = tiny.options(mlp_dim=HIDDEN, unroll=True, **options)
  graphdef, params = tiny.build(model)
  x = tiny.images()
  assert _hidden_tokens(graphdef, params, x) == {6 + model.leading_tokens, read}
  np.testing.assert_allclose(
    tiny.apply(graphdef, params, x), numpy_vit.forward(params, x)['logits'], atol=1e-5
  )


@pytest.mark.parametrize('options', WHOLE.values(), ids=WHOLE)
def test_where_all_tokens_are_needed_all_are_computed(options):
  graphdef, params = tiny.build(tiny.options(mlp_dim=HIDDEN, unroll=True, **options))
  x = tiny.images()
  assert len(_hidden_tokens(graphdef, params, x)) == 1
  expected = numpy_vit.forward(
    params, x, pool=options.get('pool', 'token'), rotary='rotary' in options.values()
  )
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected['logits'], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('dropped', 'remat'), [({}, 'none'), (DROP, 'none'), (DROP, 'dots'), ({'attention_dropout': 0.3}, 'block')]
)
def test_unrolled_blocks_have_the_masks_and_gradients_of_a_loop(dropped, remat):
  x, weights = tiny.images(), np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)

  def with_gradients(*, unroll):
    graphdef, params = tiny.build(tiny.options(unroll=unroll, depth=3, remat=remat, **dropped))
    function = lambda params: (nnx.merge(graphdef, params)(x, keys=KEYS) * weights).sum()
    with jax.default_matmul_precision('highest'):
      return jax.jit(jax.value_and_grad(function))(params)

  chex.assert_trees_all_close(with_gradients(unroll=True), with_gradients(unroll=False), rtol=1e-4, atol=1e-5)
