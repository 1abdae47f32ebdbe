"""How the C library's allocator treats the memory of programs that run on the processor."""

import ctypes
import os
import pathlib
import sys

# Files below /dev of NVIDIA's and AMD's GPUs, and of TPUs.
_ACCELERATORS = ('nvidia[0-9]*', 'kfd', 'accel[0-9]*', 'vfio/[0-9]*')
# Parameters of glibc's mallopt(3), with their values.
_MMAP_THRESHOLD = -3  # larger blocks go back to the kernel when they are freed
_TRIM_THRESHOLD = (-1, -1)  # free memory at the end of the heap that is kept: all
_ARENA_MAX = (-8, 1)  # the heap of another thread than the first could not hold more than 64 MiB


def keep_freed_memory() -> None:
  """Has this process keep the memory that it frees, for the next step; call it before the first thread starts.

  XLA's CPU client allocates the temporary arrays of a program anew each time it runs. By default glibc gives blocks of
  more than 32 MiB back to the kernel, which hands out the pages again one by one, filled with zeros: that took a tenth
  to a third of a training step, and half of it where a virtual machine's host hands them out too
  (benchmarks/RESULTS.md). In exchange a process holds what it once needed.

  Nothing is changed on a machine with an accelerator, where programs run elsewhere and threads that read images need
  heaps of their own; with another C library than glibc; nor where the environment sets glibc's allocator itself
  (MALLOC_…, GLIBC_TUNABLES).
  """
  if sys.platform != 'linux' or has_accelerator():
    return
  if any(name.startswith('MALLOC_') or name == 'GLIBC_TUNABLES' for name in os.environ):
    return
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
  if mallopt is not None:
    for parameter, value in ((_MMAP_THRESHOLD, _largest_kept()), _TRIM_THRESHOLD, _ARENA_MAX):
      mallopt(parameter, value)


def _largest_kept() -> int:
  """Bytes: an eighth of the machine's memory, since the heap may keep two or three free blocks of a program's size.

  2 GiB at most, which is as much as mallopt takes; a step of B/16 with 8 images needs 1.6 (benchmarks/RESULTS.md).
  """
  return min(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 8, 2**31 - 1)


def has_accelerator() -> bool:
  """Whether this machine has a GPU or a TPU, by the files of their drivers."""
  return any(next(pathlib.Path('/dev').glob(name), None) for name in _ACCELERATORS)
