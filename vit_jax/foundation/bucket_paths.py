"""What the objects of a bucket, whose names anybody may have chosen, are called on a disk."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

from vit_jax.foundation.errors import UserError


def local_place(top: pathlib.Path, item: str, address: str) -> pathlib.Path:
  """Where an object is copied to: below `top` as it lies below an address; UserError where its name leads elsewhere."""
  below = item.removeprefix(address).strip('/')
  if not below:
    return top
  if any(
    part in ('', '.', '..') or '\0' in part or len(os.fsencode(part)) > 240 for part in below.split('/')
  ):
    raise UserError(f'{item!r} is no name for a file of a model; remove it, or copy the model without it.')
  return top / below


@contextlib.contextmanager
def named_apart(address: str) -> Iterator[None]:
  """Inside, an object is copied to a file; UserError where an object and a folder have the same name."""
  try:
    yield
  except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
    raise UserError(
      f'{address!r} cannot be copied, since one name is of an object and of a folder; remove one of them.'
    ) from error
