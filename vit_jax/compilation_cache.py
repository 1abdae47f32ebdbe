"""Compiled programs are kept on this machine: a run that starts again does not compile again."""

import logging
import os
import pathlib
import tempfile

import jax

from vit_jax import cache

_log = logging.getLogger(__name__)

_MAX_BYTES = 2**30  # of all programs kept; the least recently used are dropped


def enable() -> None:
  """Makes JAX keep each program that takes it more than a second to compile, in ~/.cache/vit_jax/xla.

  Call it before the first compilation. JAX's own variables win: JAX_COMPILATION_CACHE_DIR (a place that all
  hosts of a pod share, so that not only process 0 finds what it wrote), JAX_COMPILATION_CACHE_MAX_SIZE,
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS, JAX_ENABLE_COMPILATION_CACHE=false. A place that cannot be
  written is a warning, and the run compiles.

  A program is found again only for the same computation, compiler, flags and kind of device; of a CPU, the
  same set of instructions.
  """
  settings = jax.config.values
  if settings['jax_compilation_cache_dir'] or not settings['jax_enable_compilation_cache']:
    return
  try:
    directory = _prepared()
  except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
    _log.warning('Compiled programs are not kept for the next start: %s.', error)
    return
  if 'JAX_COMPILATION_CACHE_MAX_SIZE' not in os.environ:
    jax.config.update('jax_compilation_cache_max_size', _MAX_BYTES)
  jax.config.update('jax_compilation_cache_dir', str(directory))


def _prepared() -> pathlib.Path:
  """The directory: there, writable, and without what a killed process left half written."""
  # Not the workdir: what lies here is run as it is, so nobody else may write it or hand it on.
  directory = cache.directory() / 'xla'
  directory.mkdir(mode=0o700, parents=True, exist_ok=True)
  with tempfile.TemporaryFile(dir=directory):
    pass
  # JAX writes a program, then the time of its use. It would neither replace the one nor, without the other,
  # ever drop anything.
  for program in directory.glob('*-cache'):
    if not program.with_name(program.name.removesuffix('-cache') + '-atime').exists():
      program.unlink(missing_ok=True)
  return directory
