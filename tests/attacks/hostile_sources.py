"""Images' sources and lists that are made to harm: case -> (reader, what makes it, words of the sentence)."""

import gzip
import os
import pathlib
import tarfile
import zipfile

from hostile_files import at, file, pipe
from hostile_folders import Make
from PIL import Image


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
  """A block of a tar."""
  member = tarfile.TarInfo(name)
  member.size, member.type = size, kind
  return member.tobuf(tarfile.USTAR_FORMAT)


def metadata(make: Make) -> Make:
  """The folder of a file, which is its metadata.jsonl."""
  return lambda folder, sound: make(folder, sound).parent


def unpacks_to_a_thousandfold(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
  with gzip.open(folder / 'x.tar.gz', 'wb') as packed:
    packed.write(header('a/x.png', 2**28))
    for _ in range(256):
      packed.write(bytes(2**20))
  return folder / 'x.tar.gz'


def negative_size(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
  block = bytearray(header('a/x.png', 0))
  block[124:136] = b'\xff' * 12
  block[148:156] = b' ' * 8
  block[148:156] = f'{sum(block):06o}\0 '.encode()
  (folder / 'x.tar').write_bytes(block + bytes(1024))
  return folder / 'x.tar'


def overlapping_tars(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
  """Each tar in a tar is cut short, and what follows it belongs to one of its members as well: 2^40 members."""
  count = 40
  end = count * 1024 + 1024
  blocks = (
    header(f'd{i}.tar', 512) + header(f'e{i}.tar', end - 512 - (i * 1024 + 1024)) for i in range(count)
  )
  (folder / 'x.tar').write_bytes(b''.join(blocks) + bytes(1024))
  return folder / 'x.tar'


def large_directory(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
  """A zip whose directory is said to have a terabyte, of a sparse file that has."""
  path = folder / 'x.zip'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('a/x.png', b'x')
  end = path.read_bytes()[-22:]
  os.truncate(path, 2**33)
  with open(path, 'ab') as zipped:
    zipped.write(end[:12] + (2**32 - 2).to_bytes(4, 'little') + (2**32).to_bytes(5, 'little')[:4] + end[20:])
  return path


def images(kind: str) -> Make:
  """A folder of two classes, whose images become something else once they are listed (`read_sources.py`)."""

  def make(folder: pathlib.Path, sound: pathlib.Path) -> pathlib.Path:
    for name in 'ab':
      (folder / name).mkdir()
      Image.new('RGB', (4, 4)).save(folder / name / 'x.png')
      Image.new('RGB', (4, 4)).save(folder / name / 'y.png')
    (folder / 'becomes').write_text(kind)
    return folder

  return make


TERABYTE = 2**40
ABOVE = b'{"file_name": "../x.png", "label": 1}\n'
PREPARED: dict[str, tuple[Make, str]] = {
  'tar.gz: bomb': (unpacks_to_a_thousandfold, 'unpacks to more than 100 times its size'),
  'tar: a name of gigabytes': (file('x.tar', header('x', 2**33 - 512, b'L'), 2**33), 'more than 256 MiB'),
  'tar: a negative size': (negative_size, 'damaged at byte 0'),
  'tar: a thousand in each other': (
    file('x.tar', b''.join(header('a.tar', 10**7) for _ in range(5000)), 10**8),
    'cannot be read as an archive',
  ),
  'tar: overlapping': (overlapping_tars, 'cannot be read as an archive|has no images'),
  'tar: a pipe': (pipe('x.tar'), 'it is not a regular file'),
  'tar: zeros without end': (at('/dev/zero'), 'it is not a regular file'),
  'zip: a directory of gigabytes': (large_directory, 'cannot be read as an archive|neither a tar nor'),
  'csv: a pipe': (pipe('x.csv'), 'it is not a regular file'),
  'csv: one line of a terabyte': (file('x.csv', b'image,label\n', TERABYTE), 'a line of more than'),
  'csv: an open quote': (file('x.csv', b'image,label\n"x' + b'\nx,y' * 10**5), 'field larger than'),
  'csv: a zero in a path': (file('x.csv', b'image,label\nx\0.png,y\n'), 'line 2 has no path of an image'),
  'jsonl: deep': (metadata(file('metadata.jsonl', b'[' * 10**5)), 'cannot be read near line 1'),
  'jsonl: a file above': (metadata(file('metadata.jsonl', ABOVE)), 'which is not below its folder'),
}
OTHERS: dict[str, tuple[str, Make, str]] = {
  'names: zeros without end': ('names', at('/dev/zero'), 'it is not a regular file'),
  'names: a terabyte': ('names', file('x.txt', b'', TERABYTE), 'more than 64 MiB'),
  'names: no UTF-8': ('names', file('x.txt', b'caf\xe9\n'), 'give a text in UTF-8'),
  'ReaL: zeros without end': ('real', at('/dev/zero'), 'it is not a regular file'),
  'ReaL: deep': ('real', file('x.json', b'[' * 10**5), 'cannot be read from'),
  'image: zeros without end': ('images', at('/dev/zero'), 'not a regular file'),
  'folder: images that become devices': ('folder', images('device'), 'it is not a regular file'),
  'folder: images that become terabytes': ('folder', images('terabyte'), 'more than 256 MiB'),
}
CASES = {name: ('prepare', *case) for name, case in PREPARED.items()} | OTHERS
