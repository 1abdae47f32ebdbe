"""Features of the training images in files of the workdir: what a killed run had computed is not computed again."""

import contextlib
import hashlib
import itertools
import json
import pathlib
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from vit_jax.evaluation.features import Features
from vit_jax.foundation import files

FOLDER = 'features'  # of the workdir


class FeatureFiles:
  """The features of consecutive parts of the images, a file each, which can be gone through again and again.

  An .npz has a checksum of each array, which reading verifies. Process 0 alone keeps them; to others none are there.

  Attributes:
    examples: how many images they are of.
  """

  def __init__(self, workdir: pathlib.Path, key: Mapping[str, Any]):
    """`key`: everything that the features depend on, in JSON's types. Files of another key are removed."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    self._folder = workdir / FOLDER / name
    self._keeps = jax.process_index() == 0
    if self._keeps and not self._folder.is_dir():
      shutil.rmtree(workdir / FOLDER, ignore_errors=True)
      files.make_directories(self._folder)
    found = [len(part.labels) for part in self._sound()] if self._keeps else []
    self._count, self.examples = len(found), sum(found)

  def __len__(self) -> int:
    """How many parts there are; where one is damaged or missing, those behind it do not count."""
    return self._count

  def __iter__(self) -> Iterator[Features]:
    return map(self._read, range(self._count))

  def append(self, part: Features) -> None:
    """Keeps the next part, which then survives a power failure."""
    if self._keeps:
      with files.atomic_write(self._path(self._count), 'wb') as file:
        np.savez(file, values=part.values, labels=part.labels)
      self._count += 1
    self.examples += len(part.labels)

  def _sound(self) -> Iterator[Features]:
    with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
      yield from map(self._read, itertools.count())

  def _read(self, number: int) -> Features:
    with np.load(self._path(number), allow_pickle=False) as arrays:
      return Features(arrays['values'], arrays['labels'])

  def _path(self, number: int) -> pathlib.Path:
    return self._folder / f'{number:06}.npz'
