"""Errors of the machine, its files and its memory, in one sentence that says what to do."""

import errno
import os
import pathlib

from absl import flags

from vit_jax import files


def of_os_error(error: OSError) -> str | None:
  """What a person can mend about files, in one sentence; None: it is no such error."""
  place = error.filename or 'the output'
  if error.errno in files.DISK_FULL:
    return f'The disk is full: {place} cannot be written; free some space there.'
  if error.errno == errno.EISDIR:
    return f'{place} is a folder; name a file.'
  if error.errno not in files.UNWRITABLE:
    return None
  if error.errno in (errno.EACCES, errno.EPERM) and _may_not_read(place):
    return f'{place} cannot be read ({error.strerror}); give yourself the right to read it.'
  return f'{place} cannot be written ({error.strerror}); choose a place that can.'


def _may_not_read(place: str) -> bool:
  """Whether one may not read a path, or the nearest folder above it that one can see."""
  path = pathlib.Path(place).absolute()
  seen = next(str(folder) for folder in (path, *path.parents) if os.path.exists(folder))
  return not os.access(seen, os.R_OK)


def is_out_of_memory(error: Exception) -> bool:
  """Whether XLA could not allocate what a program needs."""
  return type(error).__name__ in ('JaxRuntimeError', 'XlaRuntimeError') and 'RESOURCE_EXHAUSTED' in str(error)


def out_of_memory() -> str:
  """What to do, with the flags that this command has."""
  text = 'The memory of the devices is too small for this; make the batch or the images smaller'
  if 'config' in flags.FLAGS:
    return (
      f"{text}, take a larger config.accumulation or config.model.remat='block', or spread the model by "
      'config.mesh.fsdp.'
    )
  sizes = [f'--{name}' for name in ('batch_size', 'image_size') if name in flags.FLAGS]
  return f'{text} ({", ".join(sizes)}).' if sizes else f'{text}.'
