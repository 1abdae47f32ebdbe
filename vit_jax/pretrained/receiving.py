"""Appends what comes over a network to a file, with a progress bar, and syncs it to the disk."""

import os
import pathlib
import shutil
import sys
from collections.abc import Iterable

import tqdm


def append(path: pathlib.Path, parts: Iterable[bytes], size: int | None, title: str) -> None:
  """Appends parts to a file that may have the first bytes of `size` (None if unknown) already.

  The progress bar shows `title`. OSError where the rest has no room on the disk, or cannot be written.
  """
  with open(path, 'ab') as file:
    length, free = file.tell(), shutil.disk_usage(path.parent).free
    if size is not None and size - length > free:
      raise OSError(f'{size - length:,} bytes are missing and {free:,} are free')
    bar = tqdm.tqdm(
      desc=title, initial=length, total=size, unit='B', unit_scale=True, disable=not sys.stderr.isatty()
    )
    with bar:
      for part in parts:
        file.write(part)
        bar.update(len(part))
    file.flush()
    os.fsync(file.fileno())
