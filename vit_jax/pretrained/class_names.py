"""Reads class names from a file, for checkpoints that have none."""

import pathlib

from vit_jax.foundation import foreign_files
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import download


def read(place: str, num_classes: int) -> tuple[str, ...]:
  """The lines of the file that --class_names gives, by path or address; UserError: they are not one for each class."""
  path = (
    download.local_file(place, 'text') if download.is_address(place) else pathlib.Path(place).expanduser()
  )
  try:
    names = tuple(foreign_files.read_text(path).splitlines())
  except (OSError, UnicodeDecodeError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise UserError(f'--class_names={place} cannot be read ({reason}); give a text in UTF-8.') from error
  if len(names) != num_classes:
    raise UserError(f'{place} has {len(names)} names, and the checkpoint {num_classes} classes.')
  return names
