"""Folders, tars and zips of small images, made for a test."""

import io
import pathlib
import tarfile
import zipfile

import numpy as np
from image_bytes import jpeg

PICTURE = jpeg(np.zeros((4, 4, 3)))


def folder_of(root: pathlib.Path, *names: str) -> pathlib.Path:
  """A folder with an image under each name."""
  for name in names:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(PICTURE)
  return root


def tar_of(path: pathlib.Path, *names: str) -> pathlib.Path:
  """A tar with an image under each name."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with tarfile.open(path, 'w') as tar:
    add(tar, *names)
  return path


def add(tar: tarfile.TarFile, *names: str) -> None:
  """Adds an image to a tar under each name."""
  for name in names:
    add_file(tar, name, PICTURE)


def add_file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
  """Adds a file to a tar."""
  info = tarfile.TarInfo(name)
  info.size = len(content)
  tar.addfile(info, io.BytesIO(content))


def tar_around(path: pathlib.Path, *inner: pathlib.Path) -> pathlib.Path:
  """A tar with these files, under their own names."""
  with tarfile.open(path, 'w') as tar:
    for file in inner:
      tar.add(file, file.name)
  return path


def zip_of(path: pathlib.Path, *names: str) -> pathlib.Path:
  """A zip with an image under each name."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with zipfile.ZipFile(path, 'w') as archive:
    for name in names:
      archive.writestr(name, PICTURE)
  return path


def make(kind: str, root: pathlib.Path, *names: str) -> pathlib.Path:
  """A source of a kind, with an image under each name."""
  return {'folder': folder_of, 'tar': tar_of, 'zip': zip_of}[kind](root, *names)
