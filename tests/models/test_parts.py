"""Examples that processors compute a few after the other: what comes out, and where they are not cut."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from vit_jax.models import scanned_blocks

CASES = {
  'token': {},
  'unrolled': {'unroll': True},
  'mean of the tokens': {'pool': 'gap'},
  'rotary positions': {'position': 'rotary'},
  'locality': {'mlp': 'local'},
}


def _loops(program) -> list[int]:
  """The lengths of the loops of a traced program, on processors."""
  return sorted(
    eqn.params['length'] for eqn, _ in tiny.equations(program.jaxpr) if eqn.primitive.name == 'scan'
  )


@pytest.fixture
def few_at_once(monkeypatch):
  """Of tokens of 12 x 8 pixels four examples: seven tokens of width 32."""
  monkeypatch.setattr(scanned_blocks, '_AT_ONCE', 4 * 7 * 32)
  monkeypatch.setattr('vit_jax.foundation.cpus.usable', lambda: 1)


@pytest.mark.parametrize('options', CASES.values(), ids=CASES)
def test_logits_and_features_in_parts_are_those_of_all_at_once(options, monkeypatch, request):
  graphdef, params = tiny.build(tiny.options(**options))
  x = jnp.asarray(np.random.default_rng(0).normal(size=(12, 12, 8, 3)), jnp.float32)

  def outputs():
    module = nnx.merge(graphdef, params)
    function = lambda x: (module(x), *module.feature_maps(x, (0, 1)))
    return jax.jit(function)(x), jax.make_jaxpr(function)(x)

  expected, whole = outputs()
  request.getfixturevalue('few_at_once')
  found, parts = outputs()
  assert 3 in _loops(parts)
  assert 3 not in _loops(whole)
  for array, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(array, other, atol=1e-5)


@pytest.mark.parametrize('examples, length', [(4, 1), (6, 2), (7, 7), (8, 2)])
def test_parts_are_the_largest_that_divide_the_examples(examples, length, few_at_once):
  graphdef, params = tiny.build(tiny.options(depth=3))
  x = np.zeros((examples, 12, 8, 3), np.float32)
  program = jax.make_jaxpr(lambda x: nnx.merge(graphdef, params)(x))(x)
  assert (length in _loops(program)) == (length > 1)


def test_on_other_devices_all_examples_are_computed_at_once(few_at_once, monkeypatch):
  graphdef, params = tiny.build(tiny.options(depth=3))
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  program = jax.make_jaxpr(lambda x: nnx.merge(graphdef, params)(x))(np.zeros((8, 12, 8, 3), np.float32))
  assert _loops(program) == [3]
