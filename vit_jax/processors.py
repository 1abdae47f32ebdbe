"""The processors of this machine."""

import os


def usable() -> int:
  """How many processors this process may use: on Linux those of its affinity, elsewhere all."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
