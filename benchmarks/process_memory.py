"""The memory of this process."""

import pathlib


def resident_mib() -> float:
  """The memory of this process that is in RAM, in MiB."""
  lines = pathlib.Path('/proc/self/status').read_text().splitlines()
  return next(int(line.split()[1]) / 1024 for line in lines if line.startswith('VmRSS:'))
