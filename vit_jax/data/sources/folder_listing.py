"""Lists the images below a folder once: compact arrays, kept in the user's cache.

A kept listing is used as long as every folder in it has the state it had (`_state`). Adding, removing or
renaming a file changes the state of its folder, and nobody can set a folder's time of status change (ctime)
back.
"""

import dataclasses
import hashlib
import itertools
import os
import pathlib
import re
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import NamedTuple

import numpy as np

from vit_jax.data.sources.folder_layout import is_hidden
from vit_jax.foundation import cache
from vit_jax.foundation.errors import UserError

EXTENSIONS = ('.jpg', '.jpeg', '.jfif', '.png', '.webp', '.bmp', '.gif', '.tif', '.tiff')

_WORTH_KEEPING = 10_000  # images; fewer are listed in a moment
_SETTLED_NS = 2 * 10**9  # after so long, another change of a folder is sure to get another time
_FORMAT = 5  # of the kept arrays; changes with EXTENSIONS, `other_files` and `is_hidden` too
_PATHS = ', of their paths '  # before the last digest of `version_of`
_STAT_THREADS, _STAT_FILES = 16, 1000  # more than processors: on a network they wait; files of one task


@dataclasses.dataclass(frozen=True)
class Listing:
  """Images below a root, about 50 bytes each."""

  folders: tuple[str, ...]  # every folder entered, relative to the root, with '/'; '' is the root
  folder_states: np.ndarray  # int64 (folders, 4), `_state` of each
  others: np.ndarray  # int64 (folders,), number of `other_files` in each folder
  parents: np.ndarray  # int32 (images,), number of each image's folder
  names: np.ndarray  # uint8, the names of the images, one after the other
  ends: np.ndarray  # int64 (images,), where each name ends
  hashes: np.ndarray  # uint64 (images,), `path_hash` of each path

  def __len__(self) -> int:
    return len(self.parents)

  def path(self, number: int) -> str:
    """The path of an image, relative to the root."""
    first = self.ends[number - 1] if number else 0
    name = os.fsdecode(self.names[first : self.ends[number]].tobytes())
    return os.path.join(self.folders[self.parents[number]], name)


class _Folder(NamedTuple):
  """A folder and its own files."""

  path: str
  state: os.stat_result
  files: list[str]  # sorted names


def list_images(root: pathlib.Path, tops: Sequence[str]) -> Listing:
  """Lists the images below the folders in each of `tops`; images directly in a top are left out.

  Tops are relative to the root, '' is the root itself. Hidden files and folders are left out, and so are pipes,
  sockets and devices. Links to folders are followed, each folder entered once per folder of a top.

  Raises:
    UserError: a folder that cannot be read.
  """
  key = '\0'.join([str(_FORMAT), os.path.realpath(root), *tops])
  name = f'folders/{hashlib.blake2b(_bytes(key), digest_size=16).hexdigest()}'
  kept = _unpacked(cache.load_arrays(name))
  if kept is not None and _is_current(kept, root):
    return kept
  begin = time.time_ns()
  listing = _scan(root, tops)
  last_change = listing.folder_states[:, :2].max()
  if len(listing) >= _WORTH_KEEPING and last_change < begin - _SETTLED_NS:
    cache.save_arrays(name, _packed(listing))
  return listing


def path_hash(path: str) -> int:
  """64 bits that depend on the path only."""
  return int.from_bytes(hashlib.blake2b(_bytes(path), digest_size=8).digest())


def other_files(names: Sequence[str]) -> list[str]:
  """Those of a folder's files that are neither images nor captions, NAME.txt beside NAME.jpg."""
  others = [name for name in names if not name.lower().endswith(EXTENSIONS)]
  captions = {f'{os.path.splitext(name)[0]}.txt' for name in set(names).difference(others)} if others else ()
  return [name for name in others if name not in captions]


def files_below(folder: pathlib.Path) -> Iterator[str]:
  """The paths of all regular files below a folder but hidden ones; links are followed, but not to a folder around them.

  Raises UserError for a folder that cannot be read.
  """
  for path, _, names in _walk(str(folder), set(), again=True):
    for name in names:
      yield os.path.join(path, name)


def version_of(paths: Sequence[str], root: str | os.PathLike[str] = '') -> str:
  """What changes with files that stay where they are: their bytes, and digests of their sizes, mtimes and paths.

  Paths are relative to the root; one that is not there counts as that.
  """

  def states(start: int) -> list[tuple[int, int]]:
    return [_size_and_time(os.path.join(root, path)) for path in paths[start : start + _STAT_FILES]]

  digest, names, total = hashlib.sha256(), hashlib.sha256(), 0
  with futures.ThreadPoolExecutor(_STAT_THREADS) as pool:
    found = itertools.chain.from_iterable(pool.map(states, range(0, len(paths), _STAT_FILES)))
    for path, (size, time_ns) in zip(paths, found, strict=True):
      digest.update(_bytes(f'{path}\0{size}\0{time_ns}\n'))
      names.update(_bytes(f'{path}\n'))
      total += max(size, 0)
  return f'{total:,} bytes, sha256 of their sizes and times {digest.hexdigest()}{_PATHS}{names.hexdigest()}'


def paths_in(version: str) -> str:
  """The digest of paths in what `version_of` said of one folder or several; '' where there is none."""
  return ' '.join(re.findall(f'{_PATHS}([0-9a-f]+)', version))


def folders_in(path: str | pathlib.Path) -> list[str]:
  """The sorted names of the folders in a folder, except hidden ones; UserError for a folder that cannot be read."""
  try:
    with os.scandir(path) as entries:
      return sorted(entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name))
  except OSError as error:
    raise _unreadable(path, error) from error


def _walk(path: str, entered: set[tuple[int, int]], *, again: bool = False) -> Iterator[_Folder]:
  """A folder and all below it, except those entered already (by device and inode).

  With `again`, a folder may be entered by several paths, though not from within itself.
  """
  files, folders = [], []
  try:
    state = os.stat(path)
    if (state.st_dev, state.st_ino) in entered:
      return
    entered.add((state.st_dev, state.st_ino))
    with os.scandir(path) as entries:
      for entry in entries:
        if is_hidden(entry.name):
          continue
        if entry.is_dir():
          folders.append(entry.name)
        elif _is_file(entry):
          files.append(entry.name)
  except OSError as error:
    raise _unreadable(path, error) from error
  yield _Folder(path, state, sorted(files))
  for name in sorted(folders):
    yield from _walk(os.path.join(path, name), entered, again=again)
  if again:
    entered.discard((state.st_dev, state.st_ino))


def _is_file(entry: os.DirEntry[str]) -> bool:
  """Whether reading it ends: no pipe, socket or device; a broken link counts, so that the error of reading names it."""
  if entry.is_file():
    return True
  return entry.is_symlink() and not os.path.exists(entry.path)


def _unreadable(path: str | pathlib.Path, error: OSError) -> UserError:
  return UserError(f'{path} cannot be read ({error.strerror}); mend or remove it.')


def _scan(root: pathlib.Path, tops: Sequence[str]) -> Listing:
  folders, states, others = [], [], []
  parents, names, lengths, hashes = [], [], [], []
  for path, state, files in _folders_of_classes(root, tops):
    images = [_bytes(name) for name in files if name.lower().endswith(EXTENSIONS)]
    parents.append(np.full(len(images), len(folders), np.int32))
    lengths.append(np.fromiter(map(len, images), np.int64, len(images)))
    names.append(b''.join(images))
    folder = os.path.relpath(path, root)
    prefix = _bytes(folder + '/')
    hashes += [hashlib.blake2b(prefix + image, digest_size=8).digest() for image in images]
    folders.append('' if folder == '.' else folder)
    states.append(_state(state))
    others.append(len(other_files(files)))
  return Listing(
    folders=tuple(folders),
    folder_states=np.array(states, np.int64),
    others=np.array(others, np.int64),
    parents=np.concatenate(parents),
    names=np.frombuffer(b''.join(names), np.uint8),
    ends=np.cumsum(np.concatenate(lengths)),
    hashes=np.frombuffer(b''.join(hashes), '>u8').astype(np.uint64),
  )


def _folders_of_classes(root: pathlib.Path, tops: Sequence[str]) -> Iterator[_Folder]:
  """Each top, without its own files, followed by all folders of each class in it."""
  for top in tops:
    path = os.path.join(root, top) if top else str(root)
    try:
      state = os.stat(path)
    except OSError as error:
      raise _unreadable(path, error) from error
    yield _Folder(path, state, [])
    for name in folders_in(path):
      yield from _walk(os.path.join(path, name), set())


def _size_and_time(path: str) -> tuple[int, int]:
  """The size of a file in bytes and its mtime in nanoseconds; -1 and -1 if there is none that can be looked at."""
  try:
    state = os.stat(path)
  except OSError:
    return -1, -1
  return state.st_size, state.st_mtime_ns


def _state(state: os.stat_result) -> tuple[int, int, int, int]:
  """What changes with a folder: ctime and mtime in nanoseconds, size, inode.

  Some file systems keep only part of these. The times come first, see `list_images`.
  """
  return state.st_ctime_ns, state.st_mtime_ns, state.st_size, state.st_ino % 2**63


def _is_current(listing: Listing, root: pathlib.Path) -> bool:
  try:
    now = [_state(os.stat(os.path.join(root, folder))) for folder in listing.folders]
  except OSError:
    return False
  return np.array_equal(np.array(now, np.int64), listing.folder_states)


def _packed(listing: Listing) -> dict[str, np.ndarray]:
  arrays = {field.name: getattr(listing, field.name) for field in dataclasses.fields(Listing)}
  return arrays | {'folders': np.frombuffer(_bytes('\0'.join(listing.folders)), np.uint8)}


def _unpacked(arrays: dict[str, np.ndarray] | None) -> Listing | None:
  if arrays is None or arrays.keys() != {field.name for field in dataclasses.fields(Listing)}:
    return None
  text = arrays.pop('folders').tobytes().decode(errors='surrogateescape')
  return Listing(folders=tuple(text.split('\0')), **arrays)


def _bytes(path: str) -> bytes:
  return path.encode(errors='surrogateescape')
