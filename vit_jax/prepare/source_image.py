"""An image as a source lists it."""

from collections.abc import Sequence
from typing import NamedTuple


class SourceImage(NamedTuple):
  """Where an image of a source is, and what its label is."""

  # Its path in the source, with '/'. Errors call it so, and the order of the records depends on it.
  name: str
  path: str  # the path or address of the file, or of the archive that holds it
  # Where it is in an archive (`archives.Member.location`); None: it is a file of its own.
  location: int | str | None
  size: int | None  # in bytes; None: unknown
  split: str = ''  # its split; '' before it is known
  labels: Sequence[str] = ()  # the names of its classes
  weights: Sequence[float] = ()  # of each of these classes, from 0 to 1; (): the source has no weights
  captions: Sequence[str] = ()  # what it shows; (): none were asked for, or it has none
