"""Images named on a command line, and those below folders named there."""

import pathlib
from collections.abc import Sequence

from PIL import Image

from vit_jax.errors import UserError


def image_files(arguments: Sequence[str]) -> list[pathlib.Path]:
  """The files named, and those below the folders named, in order.

  Raises:
    UserError: there is no such file, or no image below a folder.
  """
  suffixes = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
  result = []
  for argument in arguments:
    path = pathlib.Path(argument)
    if path.is_dir():
      found = sorted(file for file in path.rglob('*') if file.suffix.lower() in suffixes and file.is_file())
      if not found:
        raise UserError(f'There are no images below {path}; check the folder.')
      result += found
    elif path.exists():
      result.append(path)
    else:
      raise UserError(f'There is no image {path}; check the path.')
  return result
