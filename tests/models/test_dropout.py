"""Dropout, attention dropout and stochastic depth."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx

from vit_jax.models import encoder_block
from vit_jax.models.dropout import Place, drop_path, dropout
from vit_jax.models.parts import mlps, xla_attention

DROP = {'dropout': 0.2, 'attention_dropout': 0.3, 'stochastic_depth': 0.4}


@pytest.mark.slow
def test_places_and_rates_equal_numpy():
  """The reference drops at its own places and rates, with masks drawn from the same keys."""
  graphdef, params = tiny.build(tiny.options(**DROP, depth=3))
  x, keys = tiny.images(), tiny.keys()
  places = set()

  def drop(place, layer, value):
    places.add(place)
    if place == 'embedding':
      rate, path = 0.2, (3,)  # the blocks are 0, 1 and 2
    else:
      skip = 0.4 * layer / 2
      rates = {'attention_weights': 0.3, 'attention_path': skip, 'mlp_path': skip}
      rate, path = rates.get(place, 0.2), (layer, Place[place.upper()])
    shape = () if place.endswith('_path') else value.shape[1:]
    return np.stack(
      [example * _keep(key, path, rate, shape) / (1 - rate) for key, example in zip(keys, value)]
    )

  expected = numpy_vit.forward(params, x, drop=drop)['logits']
  assert len(places) == 1 + len(Place)
  np.testing.assert_allclose(tiny.apply(graphdef, params, x, keys), expected, atol=2e-5)


def _keep(key, path, rate, shape):
  for number in path:
    key = jax.random.fold_in(key, number)
  if not shape:
    return np.asarray(jax.random.bernoulli(key, np.float32(1 - rate)))
  return _hashed(np.asarray(jax.random.key_data(key)), np.prod(shape)).reshape(shape) / 2**32 >= rate


def _hashed(words, count):
  """The bits of the elements, in integers that do not overflow."""
  x = [(int(words[0]) + 0x9E3779B9 * i) % 2**32 for i in range(count)]
  x = [(i ^ i >> 16) * 0x7FEB352D % 2**32 for i in x]
  x = [((i ^ i >> 15) + int(words[1])) * 0x846CA68B % 2**32 for i in x]
  return np.array([i ^ i >> 16 for i in x])


@pytest.mark.parametrize('rates', [{}, DROP, *({name: rate} for name, rate in DROP.items())])
def test_no_random_numbers_are_drawn_where_nothing_is_dropped(rates):
  graphdef, params = tiny.build(tiny.options(**rates))
  shapes = {}
  for keys in (None, tiny.keys()):
    jaxpr = jax.make_jaxpr(_call, static_argnums=0)(graphdef, params, tiny.images(), keys)
    shapes[keys is None] = [
      equation.outvars[0].aval.shape
      for equation, _ in tiny.equations(jaxpr.jaxpr)
      if 'random' in equation.primitive.name or 'threefry' in equation.primitive.name
    ]
  assert not shapes[True]  # evaluation
  assert bool(shapes[False]) == bool(rates)


def test_every_place_of_a_block_has_masks_of_its_own(monkeypatch):
  graphdef, params = tiny.build(tiny.options(**DROP))
  places = set()

  def noted(x, rate, keys, place):
    places.add(place)
    return x

  for module, name in (
    (encoder_block, 'drop_path'),
    *((each, 'dropout') for each in (encoder_block, xla_attention, mlps)),
  ):
    monkeypatch.setattr(module, name, noted)
  jax.eval_shape(functools.partial(_call, graphdef), params, tiny.images(), tiny.keys())
  assert places == set(Place)


@pytest.mark.parametrize('branch', ['attention_branch', 'mlp_branch'])
def test_both_of_a_pair_of_parallel_blocks_have_masks_of_their_own(monkeypatch, branch):
  graphdef, params = tiny.build(tiny.options(**DROP, block='parallel_pairs', unroll=True))
  seen = []

  def noted(self, z, keys, *_):
    seen.append(keys)
    return z

  monkeypatch.setattr(encoder_block.Block, branch, noted)
  with jax.disable_jit():
    _call(graphdef, params, tiny.images(), tiny.keys())
  numbers = {np.asarray(jax.random.key_data(keys)).tobytes() for keys in seen}
  assert len(numbers) == len(seen) == 2 * tiny.SIZES['depth']


def _call(graphdef, params, x, keys):
  return nnx.merge(graphdef, params)(x, keys=keys)


def test_dropout_drops_at_its_rate_independently_for_places_and_examples():
  keys = tiny.keys(64)
  x = jnp.ones((64, 40, 50))
  dropped = np.asarray(dropout(x, 0.3, keys, 0))
  np.testing.assert_allclose(np.unique(dropped), [0, 1 / 0.7], rtol=1e-6)
  assert (dropped == 0).mean() == pytest.approx(0.3, abs=0.005)
  other = np.asarray(dropout(x, 0.3, keys, 1))
  assert ((dropped == 0) & (other == 0)).mean() == pytest.approx(0.09, abs=0.005)  # independent places
  assert ((dropped[0] == 0) & (dropped[1] == 0)).mean() == pytest.approx(0.09, abs=0.03)  # and examples


def test_elements_of_a_mask_are_independent_of_their_neighbours_and_of_other_examples():
  """Correlations of 2 million elements each: of chance they are below 0.004 (five deviations)."""
  dropped = np.asarray(dropout(jnp.ones((64, 128, 256)), 0.1, tiny.keys(64), 0)) == 0
  z = (dropped - 0.1) / 0.3
  pairs = {f'column {i}': (z[:, :, i:], z[:, :, :-i]) for i in (1, 2, 3, 8, 128)}
  pairs |= {f'row {i}': (z[:, i:], z[:, :-i]) for i in (1, 2, 64)}
  pairs |= {f'example {i}': (z[i:], z[:-i]) for i in (1, 2)}
  correlations = {name: float((a * b).mean()) for name, (a, b) in pairs.items()}
  assert all(abs(c) < 0.005 for c in correlations.values()), correlations
  rates = dropped.reshape(64, -1).mean(axis=1)
  assert abs(rates - 0.1).max() < 5 * np.sqrt(0.09 / 128 / 256), rates
  assert rates.std() == pytest.approx(np.sqrt(0.09 / 128 / 256), rel=0.5)


def test_drop_path_drops_whole_examples_and_keeps_the_mean():
  x = jnp.ones((20_000, 2, 3), jnp.bfloat16)
  dropped = np.asarray(drop_path(x, jnp.float32(0.25), tiny.keys(20_000), 0), np.float32)
  assert (dropped == dropped[:, :1, :1]).all()
  np.testing.assert_allclose(np.unique(dropped), [0, 1 / 0.75], rtol=1e-2)
  assert dropped.mean() == pytest.approx(1, abs=0.02)


@pytest.mark.slow
def test_a_single_block_has_the_full_rate_of_stochastic_depth():
  """It is the last block."""
  graphdef, params = tiny.build(tiny.options(depth=1, stochastic_depth=0.999, pool='none'))
  x = tiny.images(1)
  vit = nnx.merge(graphdef, params)
  tokens = vit.encode(vit.embed(x), tiny.keys(1))
  np.testing.assert_allclose(tokens, vit.norm(vit.embed(x)), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('more', [{}, {'axial': True, 'mlp': 'local', 'qk_norm': True, 'pool': 'gap'}])
def test_an_example_does_not_depend_on_its_batch(more):
  graphdef, params = tiny.build(tiny.options(**DROP, **more))
  x, keys = tiny.images(4), tiny.keys(4)
  whole = tiny.apply(graphdef, params, x, keys)
  parts = [tiny.apply(graphdef, params, x[i : i + 2], keys[i : i + 2]) for i in (0, 2)]
  np.testing.assert_allclose(whole, np.concatenate(parts), atol=1e-5)
  order = np.array([2, 0, 3, 1])
  np.testing.assert_allclose(tiny.apply(graphdef, params, x[order], keys[order]), whole[order], atol=1e-5)
