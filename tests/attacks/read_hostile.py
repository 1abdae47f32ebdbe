"""Reads the paths that a JSON file names, one after the other, in little memory; prints what became of each.

python read_hostile.py CASES.json: {name: [reader, path]} in, one line of JSON, [name, *outcome], a case out. The first
is a sound checkpoint, with which everything is imported; the memory is restricted after it.
"""

import functools
import json
import os
import pathlib
import sys
import tempfile

from limited import outcome, restrict_memory

from vit_jax.data.image_files import image_files
from vit_jax.data.sources.folder import FolderSource
from vit_jax.evaluation.real_labels import RealLabels
from vit_jax.prepare.listing import Listing
from vit_jax.pretrained import class_names, formats

MEMORY = 768 * 2**20  # bytes beyond what the process has after its start


def main() -> None:
  cases = json.loads(pathlib.Path(sys.argv[1]).read_text())
  for number, (name, (reader, path)) in enumerate(cases.items()):
    if number == 1:
      restrict_memory(MEMORY)
    print(json.dumps([name, *outcome(functools.partial(READERS[reader], path))]), flush=True)


def prepare(path: str) -> None:
  with tempfile.TemporaryDirectory() as folder:
    list(Listing(path, pathlib.Path(folder), folder, allow_cut=True))


def folder(path: str) -> None:
  """Lists a folder, and reads an image that has become something else since."""
  source = FolderSource(path, 'train', val_fraction=0.5)
  kind = pathlib.Path(path, 'becomes').read_text()
  for image in pathlib.Path(path).glob('*/*.png'):
    image.unlink()
    if kind == 'device':
      image.symlink_to('/dev/zero')
    else:
      image.touch()
      os.truncate(image, 2**40)
  source[0]


READERS = {
  'checkpoint': formats.read,
  'prepare': prepare,
  'folder': folder,
  'names': lambda path: class_names.read(path, 3),
  'real': lambda path: RealLabels(path, ['a'], ['a']),
  'images': lambda path: image_files([path]),
}

if __name__ == '__main__':
  main()
