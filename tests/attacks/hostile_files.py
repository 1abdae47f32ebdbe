"""Files of NumPy, and what is no file, that are made to harm; as hostile_folders.py."""

import os
import pathlib
import struct
import zipfile

import numpy as np
from hostile_folders import Make, folder_with


def npz(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Make:
  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    with zipfile.ZipFile(folder / 'x.npz', 'w', method) as archive:
      for name, content in entries.items():
        archive.writestr(name, content)
    return folder / 'x.npz'

  return make


def array_file(header: str, version: tuple[int, int] = (1, 0), data: bytes = bytes(64)) -> bytes:
  """An .npy with a header of any text."""
  text = header.encode('latin1') + b'\n'
  return b'\x93NUMPY' + bytes(version) + struct.pack('<H', len(text)) + text + data


def header(shape: str, dtype: str = '<f4') -> str:
  return f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}"


def sizes_of_terabytes(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
  """Both sizes of an entry, in the central directory, as large as 32 bits allow."""
  path = npz({'a.npy': array_file(header('(1000000000,)'))})(folder, sound)
  content = bytearray(path.read_bytes())
  at = content.index(b'PK\x01\x02')
  content[at + 20 : at + 28] = struct.pack('<II', 2**32 - 2, 2**32 - 2)
  path.write_bytes(content)
  return path


def unpacks_to_half_a_gigabyte(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
  path = folder / 'x.npz'
  with (
    zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    archive.open('head/bias.npy', 'w') as file,
  ):
    file.write(array_file(header('(134217728,)'), data=b''))
    for _ in range(512):
      file.write(bytes(2**20))
  return path


def same_name_twice(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
  with zipfile.ZipFile(folder / 'x.npz', 'w') as archive:
    archive.writestr('a.npy', array_file(header('(16,)')))
    archive.writestr('b.npy', array_file(header('(16,)')))
  path = folder / 'x.npz'
  path.write_bytes(path.read_bytes().replace(b'b.npy', b'a.npy'))
  return path


def vit_with(name: str, *shape: int) -> Make:
  """The tensors of a released Vision Transformer and another."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    with np.load(sound / 'vit.npz') as archive:
      np.savez(folder / 'x.npz', **{**archive, name: np.zeros(shape, np.float32)})
    return folder / 'x.npz'

  return make


def resnet_with(name: str) -> Make:
  """A ResNet's first kernel, and another tensor."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    root = {'resnet/root_block/standardized_conv2d/kernel': np.zeros((7, 7, 3, 32), np.float32)}
    np.savez(folder / 'x.npz', **root, **{name: np.zeros((2, 2), np.float32)})
    return folder / 'x.npz'

  return make


def entry_edited(offset: int, value: int) -> Make:
  """Two bytes of an entry of the zip's central directory replaced."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    path = npz({'a.npy': array_file(header('(16,)'))})(folder, sound)
    content = bytearray(path.read_bytes())
    at = content.index(b'PK\x01\x02') + offset
    content[at : at + 2] = struct.pack('<H', value)
    path.write_bytes(content)
    return path

  return make


def at(path: str) -> Make:
  """What is there already."""
  return lambda folder, sound: pathlib.Path(path)


def pipe(name: str) -> Make:
  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    os.mkfifo(folder / name)
    return folder / name

  return make


def file(name: str, content: bytes, size: int | None = None) -> Make:
  """A file, filled with zeros (which take no space) to a size."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    (folder / name).write_bytes(content)
    if size is not None:
      os.truncate(folder / name, size)
    return folder / name

  return make


def of_orbax(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
  """The third step of another program's run."""
  (folder / 'theirs/3/default').mkdir(parents=True)
  (folder / 'theirs/3/default/_METADATA').write_text('{}')
  return folder / 'theirs'


def pipe_in_a_run(copy: pathlib.Path) -> None:
  (copy / 'checkpoints/0/meta/metadata').unlink()
  os.mkfifo(copy / 'checkpoints/0/meta/metadata')


CASES: dict[str, tuple[Make, str]] = {
  'a header of parentheses': (npz({'a.npy': array_file('(' * 9000)}), 'is damaged at a '),
  'a header of digits': (npz({'a.npy': array_file(header('(' + '9' * 900 + ',)'))}), 'is damaged at a '),
  'a header of version 9': (npz({'a.npy': array_file(header('(16,)'), (9, 9))}), 'is damaged at a '),
  'negative twice': (npz({'a.npy': array_file(header('(-4, -4)'))}), 'is damaged at a .*negative'),
  'a shape of terabytes': (npz({'a.npy': array_file(header('(10**12,)'))}), 'is damaged at a '),
  '400 dimensions': (npz({'a.npy': array_file(header('(' + '1,' * 400 + ')'))}), 'holds no Vision'),
  'objects': (npz({'a.npy': array_file(header('(1,)', '|O'))}), 'a pickle, which could run code'),
  'a record': (npz({'a.npy': array_file(header('(1,)', '[("a", "O")]'))}), 'is damaged at a '),
  'a zip of version 99': (entry_edited(6, 99), 'cut short, damaged'),
  'an encrypted entry': (entry_edited(8, 1), 'is damaged at a '),
  'an unknown compression': (entry_edited(10, 99), 'is damaged at a.npy'),
  'entries of terabytes': (sizes_of_terabytes, 'as no parameters do'),
  'a bomb of half a gigabyte': (unpacks_to_half_a_gigabyte, 'unpacks from .* as no parameters do'),
  'an entry that is twice there': (same_name_twice, 'holds an array twice'),
  'a line in a name': (npz({'a\nb.npy': array_file(header('(16,)'))}), r"holds a tensor called 'a\\nb.npy'"),
  'block 999999999': (vit_with('Transformer/encoderblock_999999999/x', 1), 'numbers 1000000000 blocks'),
  'a block of 150 digits': (vit_with(f'Transformer/encoderblock_{"9" * 150}/x', 1), 'that no model'),
  'stage 999999999': (resnet_with('resnet/block999999999/unit01/a'), 'numbers 999999999 stages'),
  'unit 999999999': (resnet_with('resnet/block1/unit999999999/a'), 'numbers 999999999 units'),
  'patches of no pixels': (vit_with('embedding/kernel', 0, 0, 3, 32), 'it has no elements'),
  'numbers without end': (at('/dev/zero'), '/dev/zero is not a regular file'),
  'a pipe': (pipe('x.npz'), 'is not a regular file'),
  'a run with a pipe': (folder_with('run', pipe_in_a_run), 'is not a regular file'),
  'Keras': (file('x.h5', b'x' * 100), r'x.h5 is a file of Keras, .* python -c .*from_tf=True.* makes'),
  "PyTorch's pickle": (file('x.pth', b'x' * 100), r'a PyTorch pickle \(it could run code\)'),
  "another program's Orbax": (of_orbax, 'is an Orbax checkpoint of another program, .* jimm'),
  'GGUF': (file('x.gguf', b'x' * 100), 'x.gguf is a file of llama.cpp, which vit_jax does not read; use'),
}
