"""An image as a source lists it."""

from collections.abc import Sequence
from typing import NamedTuple


class SourceImage(NamedTuple):
  """Where an image of a source is, and what its label is.

  Attributes:
    name: its path in the source, with '/'. Errors call it so, and the order of the records depends on it.
    path: the path or address of the file, or of the archive that holds it.
    location: where it is in an archive (`archives.Member.location`); None: it is a file of its own.
    size: in bytes; None: unknown.
    split: its split; '' before it is known.
    labels: the names of its classes.
    weights: of each of these classes, from 0 to 1; (): the source has no weights.
  """

  name: str
  path: str
  location: int | str | None
  size: int | None
  split: str = ''
  labels: Sequence[str] = ()
  weights: Sequence[float] = ()
