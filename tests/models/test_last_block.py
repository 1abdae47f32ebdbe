"""Unrolled blocks, and those trained on processors: the last computes only what the head reads."""

import jax
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx

from vit_jax.config import MeshConfig
from vit_jax.parallel import mesh as mesh_lib

HIDDEN = 40  # units of an MLP; no other array has so many
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
  'locality': {'mlp': 'local'},
}


def _hidden_tokens(graphdef, params, x) -> set[int]:
  """How many tokens have hidden units in the MLPs of a forward pass."""
  program = jax.make_jaxpr(lambda params, x: nnx.merge(graphdef, params)(x))(params, x)
  products = (eqn for eqn, _ in tiny.equations(program.jaxpr) if eqn.primitive.name == 'dot_general')
  shapes = [product.outvars[0].aval.shape for product in products]
  return {shape[1] for shape in shapes if len(shape) == 3 and shape[2] == HIDDEN}


@pytest.mark.parametrize('options, read', READ.values(), ids=READ)
def test_unrolled_the_last_block_computes_only_what_the_head_reads(options, read):
  model = tiny.options(mlp_dim=HIDDEN, unroll=True, **options)
  assert _hidden_tokens(*tiny.build(model), tiny.images()) == {6 + model.leading_tokens, read}


@pytest.mark.slow
@pytest.mark.parametrize('options', [options for options, _ in READ.values()], ids=READ)
def test_unrolled_the_logits_are_those_of_numpy(options):
  graphdef, params = tiny.build(tiny.options(mlp_dim=HIDDEN, unroll=True, **options))
  x = tiny.images()
  np.testing.assert_allclose(
    tiny.apply(graphdef, params, x), numpy_vit.forward(params, x)['logits'], atol=1e-5
  )


@pytest.mark.parametrize('options', WHOLE.values(), ids=WHOLE)
def test_where_all_tokens_are_needed_all_are_computed(options):
  graphdef, params = tiny.build(tiny.options(mlp_dim=HIDDEN, unroll=True, **options))
  x = tiny.images()
  assert len(_hidden_tokens(graphdef, params, x)) == 1
  expected = numpy_vit.forward(
    params, x, pool=options.get('pool', 'token'), rotary='rotary' if 'rotary' in options.values() else ''
  )
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected['logits'], atol=1e-5)


def test_trained_on_processors_a_loop_has_the_same_loss_and_gradients():
  """Its last block stands behind the loop; that of a model without a mesh is in it."""
  sharding = mesh_lib.batch_sharding(mesh_lib.make_mesh(MeshConfig(fsdp=1), jax.devices()[:1]))
  x, found = tiny.images(), {}
  for name, where in (('loop', None), ('behind', sharding)):
    graphdef, params = tiny.build(tiny.options(mlp_dim=HIDDEN, depth=3), activation_sharding=where)

    def loss(params, graphdef=graphdef):
      return (nnx.merge(graphdef, params)(x) ** 2).sum()

    found[name] = jax.jit(jax.value_and_grad(loss))(params)
  assert jax.tree.structure(found['loop']) == jax.tree.structure(found['behind'])
  # Against the largest of all gradients: that of the keys' bias is zero, but for rounding, since softmax ignores it.
  largest = max(abs(leaf).max() for leaf in jax.tree.leaves(found['loop'][1]))
  for ours, theirs in zip(jax.tree.leaves(found['behind']), jax.tree.leaves(found['loop']), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * largest)
