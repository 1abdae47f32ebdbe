from concurrent import futures

import numpy as np

from vit_jax.data.rng import PositionRngs


def fresh(seed, position):
  """The generator of a position, made by NumPy."""
  key = np.random.Philox(seed).state['state']['key']
  return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, position]))


def draws(rng):
  return rng.random(3).tolist(), rng.integers(0, 2**16, 5, np.uint16).tolist(), rng.normal(size=2).tolist()


def test_generator_depends_on_position_and_seed_only():
  rngs = PositionRngs(7)
  for position in (5, 0, 2**40, 5, 1):
    rng = rngs[position]
    assert draws(rng) == draws(fresh(7, position))
    rng.integers(0, 2, dtype=np.uint8)  # leaves half a word behind
  assert draws(rngs[3]) != draws(rngs[4])
  assert draws(PositionRngs(8)[3]) != draws(rngs[3])


def test_threads_do_not_share_a_generator():
  rngs = PositionRngs(7)

  def draw(position):
    return draws(rngs[position])

  with futures.ThreadPoolExecutor(8) as pool:
    got = list(pool.map(draw, range(2000)))
  assert got == [draws(fresh(7, position)) for position in range(2000)]
