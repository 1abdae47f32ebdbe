"""What a preparation takes of its source, and what it calls it."""

import dataclasses
import pathlib
from typing import Any

from vit_jax.foundation import foreign_files
from vit_jax.foundation.errors import UserError
from vit_jax.prepare.source_image import SourceImage


@dataclasses.dataclass(frozen=True)
class Selection:
  """Which images are prepared, their split, and the names of their classes."""

  split: str | None = None  # the one split of all images; None: those of the source
  val_name: str = 'val'  # what the split of validation is called
  num_classes: int | None = None  # so many classes there must be; None: any number
  limit: int | None = None  # images of each class folder, shard or parquet file, for a rehearsal; None: all
  classes: frozenset[str] | None = None  # the classes that are prepared; None: all
  # The names of classes that the source numbers; None: what the source says.
  class_names: tuple[str, ...] | None = None
  any_address: bool = False  # whether a table may name addresses that `image_addresses.py` refuses

  def of(self, image: SourceImage) -> SourceImage | None:
    """The image as it is prepared; None: it is left out."""
    split = self.split or (self.val_name if image.split == 'val' else image.split)
    image = image._replace(split=split)
    if self.classes is None:
      return image
    kept = [number for number, label in enumerate(image.labels) if label in self.classes]
    if not kept:
      return None
    return image._replace(
      labels=tuple(image.labels[number] for number in kept),
      weights=tuple(image.weights[number] for number in kept) if image.weights else (),
    )

  def settings(self) -> dict[str, Any]:
    """The options that are not as usual, as JSON."""
    usual, given = dataclasses.asdict(Selection()), dataclasses.asdict(self)
    changed = {name: value for name, value in given.items() if value != usual[name]}
    return {
      n: v if isinstance(v, str | int) else sorted(v) if n == 'classes' else list(v)
      for n, v in changed.items()
    }


EVERYTHING = Selection()


def read_lines(path: str | None, flag: str, *, numbered: bool = False) -> tuple[str, ...] | None:
  """The lines of a file that a flag names, stripped and without empty ones; None without a file.

  UserError: it cannot be read, or is empty; or lines stand for their numbers, and one before the last is empty.
  """
  if path is None:
    return None
  try:
    lines = foreign_files.read_text(pathlib.Path(path).expanduser()).splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f'--{flag}={path} cannot be read ({error}); give a text file.') from error
  stripped = [line.strip() for line in lines]
  while stripped and not stripped[-1]:
    stripped.pop()
  if not stripped:
    raise UserError(f'--{flag}={path} has no lines; write a class a line.')
  if numbered and '' in stripped:
    raise UserError(
      f'--{flag}={path} has no name in line {stripped.index("") + 1}; write a class a line, by its number.'
    )
  return tuple(filter(None, stripped))
