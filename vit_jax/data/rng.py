"""Random generators by position in a run."""

import threading

import numpy as np


class PositionRngs(threading.local):
  """Maps a position to its random generator, a pure function of the position and the seed.

  Each thread has one generator whose state is set for every position: that takes a microsecond, and making a
  new generator takes twenty.
  """

  def __init__(self, seed: int):
    bits = np.random.Philox(seed)
    self._state = bits.state
    self._generator = np.random.Generator(bits)

  def __getitem__(self, position: int) -> np.random.Generator:
    """The generator of a position. It is valid until the same thread asks for another one."""
    # Every value of the counter's last word starts a stream of 2¹⁹² blocks of its own.
    self._state['state']['counter'][3] = position
    self._generator.bit_generator.state = self._state
    return self._generator
