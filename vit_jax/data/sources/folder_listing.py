"""The images below a folder, listed once: compact arrays, kept in the user's cache.

A listing that was kept is used as long as every folder in it has the time of change and the size that it had:
to add, remove or rename a file changes those of its folder.
"""

import dataclasses
import hashlib
import os
import pathlib
import time
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax import cache
from vit_jax.errors import UserError

EXTENSIONS = ('.jpg', '.jpeg', '.png', '.webp', '.bmp', '.gif', '.tif', '.tiff')

_WORTH_KEEPING = 10_000  # images; fewer are listed in a moment
_SETTLED_NS = 2 * 10**9  # after that long, a further change of a folder is sure to change its time
_FORMAT = 1  # of the kept arrays


@dataclasses.dataclass(frozen=True)
class Listing:
  """Images below a root, about 50 bytes each.

  Attributes:
    folders: every folder entered, relative to the root, with '/'; '' is the root.
    folder_states: int64 (folders, 2), each one's time of change in nanoseconds and its size.
    others: for each folder, the number of files that are no images.
    parents: int32 (images,), the number of each image's folder.
    names: uint8, the images' names, one after the other.
    ends: int64 (images,), where each name ends.
    hashes: uint64 (images,), `path_hash` of each path.
  """

  folders: tuple[str, ...]
  folder_states: np.ndarray
  others: np.ndarray
  parents: np.ndarray
  names: np.ndarray
  ends: np.ndarray
  hashes: np.ndarray

  def __len__(self) -> int:
    return len(self.parents)

  def path(self, number: int) -> str:
    """Relative to the root."""
    first = self.ends[number - 1] if number else 0
    name = os.fsdecode(self.names[first : self.ends[number]].tobytes())
    return os.path.join(self.folders[self.parents[number]], name)


def list_images(root: pathlib.Path, tops: Sequence[str]) -> Listing:
  """The images in the folders below each of `tops`, relative to the root; those right in a top are no part.

  Hidden files and folders are left out; links to folders are followed, each folder entered once in a folder
  of a top.

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
  settled = listing.folder_states[:, 0].max() < begin - _SETTLED_NS
  if len(listing) >= _WORTH_KEEPING and settled:
    cache.save_arrays(name, _packed(listing))
  return listing


def path_hash(path: str) -> int:
  """64 bits that depend on nothing but the path."""
  return int.from_bytes(hashlib.blake2b(_bytes(path), digest_size=8).digest())


def files_below(folder: pathlib.Path) -> Iterator[str]:
  """The paths of all files below a folder but hidden ones; links to folders are followed, each entered once.

  Raises:
    UserError: a folder that cannot be read.
  """
  for path, _, names in _walk(str(folder), set()):
    yield from (os.path.join(path, name) for name in names)


def _walk(path: str, entered: set[tuple[int, int]]) -> Iterator[tuple[str, os.stat_result, list[str]]]:
  """Path, state and sorted names of the files of a folder and all below it, but those entered already."""
  try:
    state = os.stat(path)
    if (state.st_dev, state.st_ino) in entered:
      return
    entered.add((state.st_dev, state.st_ino))
    with os.scandir(path) as entries:
      shown = sorted((entry.name, entry.is_dir()) for entry in entries if entry.name[0] != '.')
  except OSError as error:
    raise UserError(f'{path} cannot be read ({error.strerror}); mend or remove it.') from error
  yield path, state, [name for name, is_folder in shown if not is_folder]
  for name, is_folder in shown:
    if is_folder:
      yield from _walk(os.path.join(path, name), entered)


def _scan(root: pathlib.Path, tops: Sequence[str]) -> Listing:
  folders, states, others = [], [], []
  parents, names, lengths, hashes = [], [], [], []
  for path, state, files in _folders_of_classes(root, tops):
    images = [name.encode(errors='surrogateescape') for name in files if name.lower().endswith(EXTENSIONS)]
    parents.append(np.full(len(images), len(folders), np.int32))
    lengths.append(np.fromiter(map(len, images), np.int64, len(images)))
    names.append(b''.join(images))
    folder = os.path.relpath(path, root)
    prefix = _bytes(folder + '/')
    hashes += [hashlib.blake2b(prefix + image, digest_size=8).digest() for image in images]
    folders.append('' if folder == '.' else folder)
    states.append(_state(state))
    others.append(len(files) - len(images))
  return Listing(
    folders=tuple(folders),
    folder_states=np.array(states, np.int64).reshape(-1, 2),
    others=np.array(others, np.int64),
    parents=np.concatenate(parents),
    names=np.frombuffer(b''.join(names), np.uint8),
    ends=np.cumsum(np.concatenate(lengths)),
    hashes=np.frombuffer(b''.join(hashes), '>u8').astype(np.uint64),
  )


def _folders_of_classes(
  root: pathlib.Path, tops: Sequence[str]
) -> Iterator[tuple[str, os.stat_result, list[str]]]:
  """As `_walk`: each top without its own files, then all folders of each class in it."""
  for top in tops:
    path = os.path.join(root, top) if top else str(root)
    yield path, os.stat(path), []
    for name in folders_in(path):
      yield from _walk(os.path.join(path, name), set())


def folders_in(path: str | pathlib.Path) -> list[str]:
  """The sorted names of the folders in a folder but hidden ones."""
  return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and entry.name[0] != '.')


def _state(state: os.stat_result) -> tuple[int, int]:
  return state.st_mtime_ns, state.st_size


def _is_current(listing: Listing, root: pathlib.Path) -> bool:
  try:
    now = [_state(os.stat(os.path.join(root, folder))) for folder in listing.folders]
  except OSError:
    return False
  return bool((np.array(now, np.int64).reshape(-1, 2) == listing.folder_states).all())


def _packed(listing: Listing) -> dict[str, np.ndarray]:
  arrays = {field.name: getattr(listing, field.name) for field in dataclasses.fields(Listing)}
  return arrays | {'folders': np.frombuffer(_bytes('\0'.join(listing.folders)), np.uint8)}


def _unpacked(arrays: dict[str, np.ndarray] | None) -> Listing | None:
  if arrays is None or arrays.keys() != {field.name for field in dataclasses.fields(Listing)}:
    return None
  text = arrays['folders'].tobytes().decode(errors='surrogateescape')
  return Listing(**arrays | {'folders': tuple(text.split('\0'))})


def _bytes(path: str) -> bytes:
  return path.encode(errors='surrogateescape')
