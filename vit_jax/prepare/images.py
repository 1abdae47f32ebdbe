"""One image on its way into a record: read, checked and, if wanted, shrunk."""

import dataclasses

import cv2
import numpy as np

from vit_jax.data.decode import Picture
from vit_jax.foundation import foreign_files
from vit_jax.foundation.errors import BadImage, UserError
from vit_jax.prepare import archives, storage
from vit_jax.prepare.shard_plan import MIB, Item

_LARGEST = foreign_files.LARGEST_IMAGE  # an archive may claim, and unpack to, any size
_OVERSAMPLING = 2  # a JPEG is decoded at a reduced scale that is at least so many times the wanted size


@dataclasses.dataclass(frozen=True)
class Shrinking:
  """The size that larger images are shrunk to, keeping their shape. No image is enlarged."""

  longest_side: int | None = None  # pixels that the longest side has at most; None: any number
  shortest_side: int | None = None  # pixels that the shortest side has at most; None: any number
  quality: int = 95  # of the JPEG that a shrunk image becomes, from 1 to 100, as libjpeg counts

  def size(self, height: int, width: int) -> tuple[int, int]:
    """The new height and width of an image of this height and width, in pixels."""
    scale = 1.0
    if self.longest_side:
      scale = min(scale, self.longest_side / max(height, width))
    if self.shortest_side:
      scale = min(scale, self.shortest_side / min(height, width))
    return max(round(height * scale), 1), max(round(width * scale), 1)


def load(item: Item, shrinking: Shrinking) -> bytes:
  """Reads an image for a record: the bytes of the file or, if it is to be shrunk, a smaller RGB JPEG.

  Every image is decoded, at the coarsest scale that shows damage anywhere in it.

  Raises:
    BadImage: it cannot be read, is not a regular file, is damaged or too large. The text says which.
    UserError: the place that it is in cannot be reached.
  """
  content = _read(item)
  picture = Picture(content, 3, item.name)
  size = shrinking.size(*picture.size)
  if size == tuple(picture.size):
    picture.pixels((1, 1))  # only to find damage
    return content
  pixels = picture.pixels((_OVERSAMPLING * size[0], _OVERSAMPLING * size[1]))
  pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
  return _jpeg(pixels, shrinking.quality)


def _read(item: Item) -> bytes:
  """The encoded image, at most `_LARGEST` bytes."""
  if item.size is not None and item.size > _LARGEST:
    raise _too_large(item.name)
  try:
    if item.location is not None:
      return archives.read(item.path, item.location, item.size)
    with storage.open_file(item.path) as file:
      content = file.read(_LARGEST + 1)
  except (UserError, MemoryError):  # no fault of the image
    raise
  except Exception as error:  # files, archives, their compressions and remote systems raise many types
    reason = getattr(error, 'strerror', None) or str(error).strip().rstrip('.') or type(error).__name__
    raise BadImage(
      item.name, f'{item.name} cannot be read ({reason[:200]}); restore or remove it.'
    ) from error
  if len(content) > _LARGEST:
    raise _too_large(item.name)
  return content


def _too_large(name: str) -> BadImage:
  return BadImage(name, f'{name} is refused (it has more than {_LARGEST // MIB} MiB); shrink or remove it.')


def _jpeg(pixels: np.ndarray, quality: int) -> bytes:
  """Encodes uint8 RGB pixels (H, W, 3)."""
  bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
  return cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()
