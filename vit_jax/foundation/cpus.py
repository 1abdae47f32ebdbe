"""The processors of this machine."""

import os


def usable() -> int:
  """How many processors this process may use: on Linux those of its affinity, elsewhere all."""
  affinity = getattr(os, 'sched_getaffinity', None)
  return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
