"""What a process does with memory that it has freed, seen from the pages that the kernel hands it."""

import os
import subprocess
import sys

import pytest

from vit_jax.foundation import allocator

pytestmark = pytest.mark.skipif(
  sys.platform != 'linux' or allocator.has_accelerator(),
  reason='another C library, or programs run elsewhere',
)

# The command `vit_jax` runs a program with a temporary matrix of ROWS rows and columns, and prints how many pages of
# 4 KiB the kernel hands it in the last of its runs.
SCRIPT = """
import resource, sys
sys.argv = ['vit_jax']
import vit_jax
import jax
import jax.numpy as jnp

program = jax.jit(lambda x: jnp.tanh(x @ x.T).sum())
x = jnp.ones((ROWS, 8))
for _ in range(3):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  program(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

# Likewise, of three blocks that are freed together.
BLOCKS = """
import resource, sys
sys.argv = ['vit_jax']
import vit_jax

for _ in range(3):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  [b'.' * 2**30 for _ in range(3)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(script: str, **environment: str) -> int:
  """The pages that a script prints, with these settings of the allocator only."""
  others = {name: value for name, value in os.environ.items() if not name.startswith(('MALLOC_', 'GLIBC_'))}
  done = subprocess.run(
    [sys.executable, '-c', script],
    env={**others, 'XLA_FLAGS': '', 'NPROC': '2', **environment},
    capture_output=True,
    text=True,
    check=True,
  )
  return int(done.stdout)


@pytest.mark.slow
def test_program_on_the_processor_finds_its_memory_again_unless_the_environment_says_otherwise():
  small = SCRIPT.replace('ROWS', '3500')  # 47 MiB
  assert pages(small) < 1000
  if os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') > 12 * 2**30:
    assert pages(SCRIPT.replace('ROWS', '18_000')) < 1000  # 1.2 GiB, of an eighth of the memory
    assert pages(BLOCKS) < 1000  # together more than any number by which glibc would keep them
  assert pages(small, MALLOC_TRIM_THRESHOLD_='131072') > 10_000
