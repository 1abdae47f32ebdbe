"""Errors of the machine, its files and its memory, in one sentence that says what to do."""

import contextlib
import errno
import io
import os
import pathlib
import resource
import traceback
from collections.abc import Collection, Iterator

from absl import flags

from vit_jax.foundation import files

# Errors of the machine that a file meets, and what to do.
FAILURES = {
  errno.ENOSPC: 'free some space there',
  errno.EDQUOT: 'free some space there',
  errno.EROFS: 'have the file system mounted so that it can be written, or choose another place',
  errno.EIO: 'see that the disk, or the file system over the network, answers again',
  errno.ESTALE: 'see that the file system over the network answers again',
  errno.EMFILE: 'raise the number of files that a process may open, by ulimit -n',
  errno.ENFILE: 'raise the number of files that may be open on this machine',
  errno.EFBIG: 'raise the size that a file may have here, by ulimit -f',
  errno.ENOMEM: 'raise the memory that a process may use, by ulimit -v, or take a machine with more',
}

# Module -> its package, where that has another name.
_PACKAGES = {
  'cv2': 'opencv-python-headless',
  'sklearn': 'scikit-learn',
  'tensorflow_datasets': 'tensorflow-datasets',
}

# What is raised in place of a MemoryError where a thread or a shared library gets no memory.
_NO_MEMORY = ("can't start new thread", 'failed to map segment from shared object')
# What C++ says where XLA draws from /dev/urandom, and no more files may be opened.
_NO_RANDOM_DEVICE = 'random_device(const std::string&): device not available'


def of(error: Exception) -> str | None:
  """What a person can mend about files, memory and packages, in one sentence; None: the error is another one."""
  if isinstance(error, OSError):
    return of_os_error(error)
  if isinstance(error, ModuleNotFoundError) and not (error.name or 'vit_jax').startswith('vit_jax'):
    return not_installed(str(error.name))
  if is_out_of_memory(error):
    return out_of_memory()
  if isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY):
    return too_little_memory()
  if _NO_RANDOM_DEVICE in str(error):
    return failure(errno.EMFILE, '/dev/urandom')
  # A library raises what it likes in place of the machine's error.
  number = number_among(error, FAILURES)
  return failure(number, 'A file') if number else None


def not_installed(module: str) -> str:
  """What to do where a module of a package that vit_jax depends on is not there."""
  top = module.partition('.')[0]
  package = _PACKAGES.get(top, top)
  return f'The package {package} is not installed, and this needs it: pip install {package}.'


def of_os_error(error: OSError) -> str | None:
  """What a person can mend about files, in one sentence; None: it is no such error."""
  place = _place(error)
  if error.errno == errno.EISDIR:
    return f'{place} is a folder; name a file.'
  if error.errno == errno.ENOMEM:
    return too_little_memory()
  if error.errno in FAILURES:
    return failure(error.errno, place)
  if error.errno not in files.UNWRITABLE:
    return None
  if error.errno in (errno.EACCES, errno.EPERM) and _may_not_read(place):
    return f'{place} cannot be read ({error.strerror}); give yourself the right to read it.'
  return f'{place} cannot be written ({error.strerror}); choose a place that can.'


def failure(number: int, place: str) -> str:
  """The sentence of an error of FAILURES: what failed, what to do, and what is safe."""
  safe = 'what was written whole before is safe'
  if 'workdir' in flags.FLAGS:
    safe = 'what was saved before is whole, and the same command goes on from there'
  if number in files.DISK_FULL:
    return f'The disk is full: {place} cannot be written; {FAILURES[number]}: {safe}.'
  return f'{place} cannot be read or written ({os.strerror(number)}); {FAILURES[number]}: {safe}.'


def chain(error: BaseException | None) -> Iterator[BaseException]:
  """The error and all that led to it."""
  while error is not None:
    yield error
    yield from getattr(error, 'exceptions', ())
    error = error.__cause__ or error.__context__


def number_among(error: BaseException, numbers: Collection[int]) -> int | None:
  """The first of these numbers of the operating system that led to an error; None: none did.

  TensorStore gives the operating system's error in its text alone.
  """
  for link in chain(error):
    for number in numbers:
      if isinstance(link, OSError) and link.errno is not None:
        if link.errno == number:
          return number
      elif os.strerror(number) in str(link):
        return number
  return None


def _place(error: OSError) -> str:
  """The file that an error is about; of one without a name, the file that is open where it was raised."""
  named = error.filename
  for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
    for value in frame.f_locals.values():
      found = getattr(value, 'name', None) if isinstance(value, io.IOBase) else None
      name = os.fspath(found) if isinstance(found, str | os.PathLike) else '<none>'
      if not name.startswith('<') and (named is None or name.startswith(f'{named}/')):
        return name
  if named is not None:
    return str(named)
  with contextlib.suppress(OSError):
    output = os.readlink('/proc/self/fd/1')
    if os.path.isabs(output):
      return output
  return 'the output'


def _may_not_read(place: str) -> bool:
  """Whether one may not read a path, or the nearest folder above it that one can see."""
  path = pathlib.Path(place).absolute()
  seen = next(str(folder) for folder in (path, *path.parents) if os.path.exists(folder))
  return not os.access(seen, os.R_OK)


def too_little_memory() -> str:
  """What to do where the process may not have the memory that it needs."""
  limit, may = resource.getrlimit(resource.RLIMIT_AS)[0], ''
  if limit != resource.RLIM_INFINITY:
    may = f' than the {limit / 2**30:.1f} GiB that it may use (ulimit -v)'
  return (
    f'The process needs more memory{may}; {FAILURES[errno.ENOMEM]}: what was written whole before is safe.'
  )


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
