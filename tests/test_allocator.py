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

# The command `vit_jax` runs a program with a temporary matrix of 47 MiB, and prints how many pages of 4 KiB the
# kernel hands it in the last of its runs.
SCRIPT = """
import resource, sys
sys.argv = ['vit_jax']
import vit_jax
import jax
import jax.numpy as jnp

program = jax.jit(lambda x: jnp.tanh(x @ x.T).sum())
x = jnp.ones((3500, 8))
for _ in range(3):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  program(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(**environment: str) -> int:
  """The pages of a run, with these settings of the allocator only."""
  others = {name: value for name, value in os.environ.items() if not name.startswith(('MALLOC_', 'GLIBC_'))}
  done = subprocess.run(
    [sys.executable, '-c', SCRIPT],
    env={**others, 'XLA_FLAGS': '', 'NPROC': '2', **environment},
    capture_output=True,
    text=True,
    check=True,
  )
  return int(done.stdout)


@pytest.mark.slow
def test_program_on_the_processor_finds_its_memory_again_unless_the_environment_says_otherwise():
  assert pages() < 1000
  assert pages(MALLOC_TRIM_THRESHOLD_='131072') > 10_000
