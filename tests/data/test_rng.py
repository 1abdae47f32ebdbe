from concurrent import futures

import numpy as np

from vit_jax.data.rng import Generators


def fresh(seed, position):
  """Philox as NumPy makes it anew."""
  key = np.random.Philox(seed).state['state']['key']
  return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, position]))


def draws(rng):
  return rng.random(3).tolist(), rng.integers(0, 2**16, 5, np.uint16).tolist(), rng.normal(size=2).tolist()


def test_a_position_has_its_generator_whatever_was_asked_before():
  generators = Generators(7)
  for position in (5, 0, 2**40, 5, 1):
    rng = generators[position]
    assert draws(rng) == draws(fresh(7, position))
    rng.integers(0, 2, dtype=np.uint8)  # leaves half a word behind
  assert draws(generators[3]) != draws(generators[4])
  assert draws(Generators(8)[3]) != draws(generators[3])


def test_threads_do_not_disturb_each_other():
  generators = Generators(7)
  with futures.ThreadPoolExecutor(8) as pool:
    got = list(pool.map(lambda position: draws(generators[position]), range(2000)))
  assert got == [draws(fresh(7, position)) for position in range(2000)]
