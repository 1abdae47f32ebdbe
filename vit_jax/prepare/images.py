"""One image on its way into a record: read, checked, and shrunk where that is wanted."""

import dataclasses

import cv2
import numpy as np

from vit_jax.data.decode import Picture
from vit_jax.errors import BadImage, UserError
from vit_jax.prepare import archives, storage
from vit_jax.prepare.sharding import MIB, Item

_LARGEST = 256 * MIB  # of an encoded image; an archive may claim, and unpack to, anything
_OVERSAMPLED = 2  # a JPEG is decoded at a reduced scale while that is so many times what it is shrunk to


@dataclasses.dataclass(frozen=True)
class Shrinking:
  """To what images are shrunk; larger ones only, and none is enlarged."""

  longest_side: int | None = None
  shortest_side: int | None = None
  quality: int = 95  # of the JPEG, as libjpeg counts

  def size(self, height: int, width: int) -> tuple[int, int]:
    """Height and width after it."""
    scale = 1.0
    if self.longest_side:
      scale = min(scale, self.longest_side / max(height, width))
    if self.shortest_side:
      scale = min(scale, self.shortest_side / min(height, width))
    return max(round(height * scale), 1), max(round(width * scale), 1)


def load(item: Item, shrinking: Shrinking) -> bytes:
  """An encoded image: the file's own bytes, or a smaller RGB image as JPEG.

  Every image is decoded, at the coarsest scale that shows damage everywhere.

  Raises:
    BadImage: it cannot be read, is damaged or too large, and why.
    UserError: its place cannot be reached.
  """
  content = _read(item)
  picture = Picture(content, 3, item.name)
  size = shrinking.size(*picture.size)
  if size == tuple(picture.size):
    picture.pixels((1, 1))
    return content
  pixels = picture.pixels((_OVERSAMPLED * size[0], _OVERSAMPLED * size[1]))
  pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
  return _jpeg(pixels, shrinking.quality)


def _read(item: Item) -> bytes:
  bad = lambda text: BadImage(item.name, f'{item.name} {text} it.')
  too_large = f'is refused (it has more than {_LARGEST // MIB} MiB); shrink or remove'
  if item.size is not None and item.size > _LARGEST:
    raise bad(too_large)
  try:
    if item.within is not None:
      return archives.read(item.path, item.within, item.size)
    with storage.open_file(item.path) as file:
      content = file.read(_LARGEST + 1)
  except (UserError, MemoryError):  # no fault of the image
    raise
  except Exception as error:  # of files, archives and their compressions, and remote systems
    reason = getattr(error, 'strerror', None) or str(error).strip().rstrip('.') or type(error).__name__
    raise bad(f'cannot be read ({reason}); restore or remove') from error
  if len(content) > _LARGEST:
    raise bad(too_large)
  return content


def _jpeg(pixels: np.ndarray, quality: int) -> bytes:
  """Encodes uint8 (H, W, 3)."""
  bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
  return cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()
