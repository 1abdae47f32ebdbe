"""Encoded images of any kind to uint8 pixels, with every failure named.

What becomes of the uncommon kinds: EXIF orientation is applied; palettes are resolved; alpha is dropped, as
TensorFlow's decoders do (not blended over a colour); CMYK, also Adobe's inverted one, is converted without
a colour profile; 16 bits a channel keep the upper 8; of an animation the first frame is taken.
"""

import contextlib
import io

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vit_jax.errors import UserError

_MODES = {1: 'L', 3: 'RGB'}
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that exchange height and width
_REDUCTIONS = (8, 4, 2)  # scales at which a JPEG decodes faster, by its DCT


class Picture:
  """An image whose size is known before its pixels are decoded."""

  def __init__(self, image: bytes | np.ndarray, channels: int, name: str):
    """Reads the header.

    Args:
      image: an encoded file, or uint8 pixels (H, W) or (H, W, C).
      channels: 3 (RGB) or 1 (luma), what `pixels` returns.
      name: what errors call it.

    Raises:
      UserError: not an image, or one of more pixels than Pillow's limit against decompression bombs.
    """
    self._channels, self._name = channels, name
    self._file = self._array = None
    if isinstance(image, np.ndarray):
      self._array = image
      self.size = image.shape[:2]
      return
    if not image:
      raise UserError(f'{name} is empty (0 bytes); restore or remove it.')
    with self._errors_named():
      self._file = Image.open(io.BytesIO(image))
      width, height = self._file.size
      # Only a JPEG's header is sure to have the orientation; of the others the size is read after decoding.
      self._is_jpeg = self._file.format in ('JPEG', 'MPO')
      if self._is_jpeg and self._orientation() in _SIDEWAYS:
        width, height = height, width
      if not self._is_jpeg:
        self._array = self._decoded()
        height, width = self._array.shape[:2]
    self.size = (height, width)

  def pixels(self, at_least: tuple[float, float] | None = None) -> np.ndarray:
    """uint8 (H', W', channels).

    Args:
      at_least: a height and width that suffice for the whole image: a JPEG is then decoded at 1/2, 1/4 or
        1/8 of its size if that is no smaller. None: decode at full size.

    Raises:
      UserError: a damaged file, or pixels of an unknown kind.
    """
    if self._array is None:
      with self._errors_named():
        # Straight to luma where that is wanted; the file allows only one call of draft.
        self._file.draft('L' if self._channels == 1 else None, self._reduced(at_least))
        self._array = self._decoded()
    return _with_channels(self._array, self._channels)

  def _reduced(self, at_least: tuple[float, float] | None) -> tuple[int, int] | None:
    """Width and height, in the file's own orientation, of which the decoder makes the largest reduction."""
    height, width = self.size
    for factor in _REDUCTIONS if at_least else ():
      if height >= factor * at_least[0] and width >= factor * at_least[1]:
        return self._file.width // factor, self._file.height // factor
    return None

  def _decoded(self) -> np.ndarray:
    image, mode = self._file, _MODES[self._channels]
    image.load()
    if self._orientation() not in (None, 1):
      image = ImageOps.exif_transpose(image)
    if image.mode.startswith('I;16'):
      return (np.asarray(image) >> 8).astype(np.uint8)
    if image.mode in ('I', 'F'):
      raise ValueError('it has 32 bits a pixel, and 8 or 16 are supported')
    if image.mode not in ('L', mode):
      image = image.convert(mode)
    return np.asarray(image)

  def _orientation(self) -> int | None:
    # The dictionary is empty for most files, and parsing EXIF is slow.
    if 'exif' not in self._file.info and self._file.format != 'TIFF':
      return None
    return self._file.getexif().get(ExifTags.Base.Orientation)

  @contextlib.contextmanager
  def _errors_named(self):
    try:
      yield
    except Image.DecompressionBombError as error:
      raise UserError(f'{self._name} is refused ({str(error).rstrip(".")}); shrink or remove it.') from error
    except UnidentifiedImageError as error:
      raise UserError(f'{self._name} is not an image of a known format; remove or replace it.') from error
    except Exception as error:  # Pillow's decoders raise a dozen types on damaged data
      reason = str(error).strip().rstrip('.') or type(error).__name__
      raise UserError(f'{self._name} cannot be decoded ({reason}); restore or remove it.') from error


def _with_channels(image: np.ndarray, channels: int) -> np.ndarray:
  """uint8 (H, W) or (H, W, 1 or 3) as (H, W, channels)."""
  if image.ndim == 2:
    image = image[:, :, None]
  if image.shape[2] == channels:
    return image
  if channels == 3:
    return np.repeat(image, 3, axis=2)
  return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None]
