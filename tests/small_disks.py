"""File systems in memory, of a few bytes or to be read only, where this machine allows to mount one."""

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def mounted(folder: pathlib.Path, options: str) -> Iterator[pathlib.Path]:
  """A file system with these options, such as 'size=64k' or 'ro', at a folder; skips the test otherwise."""
  folder.mkdir(exist_ok=True)
  command = ['mount', '-t', 'tmpfs', '-o', options, 'tmpfs', folder]
  result = subprocess.run(command, capture_output=True, text=True)
  if result.returncode:
    pytest.skip(f'no file system can be mounted here: {result.stderr.strip()}')
  try:
    yield folder
  finally:
    subprocess.run(['umount', '-l', folder], check=True)
