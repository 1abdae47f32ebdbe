"""Image files named on a command line, and those in folders named there."""

import pathlib
import stat
from collections.abc import Sequence

from PIL import Image

from vit_jax.data.sources.folder_listing import files_below
from vit_jax.foundation.errors import UserError


def image_files(arguments: Sequence[str]) -> list[pathlib.Path]:
  """The files named, and in place of each folder the images below it, sorted.

  Raises:
    UserError: an address, no such file or no regular one, a folder without images, or one that cannot be read.
  """
  suffixes = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
  result = []
  for argument in arguments:
    if '://' in argument:
      raise UserError(
        f'{argument} is an address, and images are read from local disks; copy them to one first.'
      )
    path = pathlib.Path(argument)
    mode = _mode(path)
    if stat.S_ISDIR(mode):
      files = map(pathlib.Path, files_below(path))
      images = sorted(file for file in files if file.suffix.lower() in suffixes)
      if not images:
        raise UserError(f'There are no images below {path}; check the folder.')
      result += images
    elif stat.S_ISREG(mode):
      result.append(path)
    else:
      raise UserError(f'{path} is not a regular file; name an image or a folder of images.')
  return result


def _mode(path: pathlib.Path) -> int:
  try:
    return path.stat().st_mode
  except (FileNotFoundError, NotADirectoryError):
    raise UserError(f'There is no image {path}; check the path.') from None
  except OSError as error:
    raise UserError(f'{path} cannot be read ({error.strerror}); check its permissions.') from error
