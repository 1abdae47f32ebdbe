"""Random generators by position."""

import threading

import numpy as np


class Generators(threading.local):
  """position -> the random generator of that position, a pure function of it and the seed.

  Setting the state of a generator takes a microsecond, making one twenty.
  """

  def __init__(self, seed: int):
    bits = np.random.Philox(seed)
    self._state = bits.state
    self._generator = np.random.Generator(bits)

  def __getitem__(self, position: int) -> np.random.Generator:
    """The thread's one generator: good until the thread asks for another."""
    # Each value of the counter's last word begins a stream of 2¹⁹² blocks.
    self._state['state']['counter'][3] = position
    self._generator.bit_generator.state = self._state
    return self._generator
