"""Encoded images of any kind to uint8 pixels, with every failure named.

What becomes of the uncommon kinds: EXIF orientation is applied, where it can be read; palettes are resolved;
alpha is dropped, as TensorFlow's decoders do (not blended over a colour); CMYK, also Adobe's inverted one, is
converted without a colour profile; 16 bits a channel keep the upper 8; an animation gives its first frame.
"""

import contextlib
import io
import warnings

import cv2
import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from vit_jax.data import jpeg
from vit_jax.errors import BadImage, UserError

# Of damaged metadata, for which an image is not refused, and of large images below the limit.
warnings.filterwarnings('ignore', module=r'PIL\.')

_MODES = {1: 'L', 3: 'RGB'}
# What brings a picture of an EXIF orientation upright.
_TURNS = {
  2: Image.Transpose.FLIP_LEFT_RIGHT,
  3: Image.Transpose.ROTATE_180,
  4: Image.Transpose.FLIP_TOP_BOTTOM,
  5: Image.Transpose.TRANSPOSE,
  6: Image.Transpose.ROTATE_270,
  7: Image.Transpose.TRANSVERSE,
  8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)  # exchange height and width
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
      BadImage: not an image, or one of more pixels than Pillow's limit against decompression bombs.
    """
    self._data, self._channels, self._name = image, channels, name
    self._file = self._array = self._jpeg = None
    if isinstance(image, np.ndarray):
      self._array = image
      self.size = image.shape[:2]
      return
    if not image:
      raise BadImage(name, f'{name} is empty (0 bytes); restore or remove it.')
    self._jpeg = jpeg.read_header(image)
    self.size = self._jpeg[:2] if self._jpeg else self._open()

  def pixels(self, at_least: tuple[float, float] | None = None) -> np.ndarray:
    """uint8 (H', W', channels): the whole picture.

    Args:
      at_least: a height and width that suffice: a JPEG is then decoded at 1/2, 1/4 or 1/8 of its size if that
        is no smaller. None: decode at full size.

    Raises:
      BadImage: a damaged file, or pixels of an unknown kind.
    """
    return self.part((0, 0, *self.size), at_least)[0]

  def part(
    self, box: tuple[int, int, int, int], at_least: tuple[float, float] | None = None
  ) -> tuple[np.ndarray, tuple[float, float, float, float]]:
    """Pixels that have a part of the picture in them, and where.

    Args:
      box: the part's top, left, height and width.
      at_least: as for `pixels`, of the part.

    Returns:
      uint8 (H', W', channels): the picture or the upper part of it, perhaps at a reduced scale.
      the box in those pixels, in fractions of one too if the scale is reduced.

    Raises:
      BadImage: a damaged file, or pixels of an unknown kind.
    """
    if self._array is not None:
      return _with_channels(self._array, self._channels), box
    top, _, height, width = box
    fits = lambda factor: height >= factor * at_least[0] and width >= factor * at_least[1]
    factor = next(filter(fits, _REDUCTIONS), 1) if at_least else 1
    pixels = _with_channels(self._decoded_rows(top + height, factor), self._channels)
    return pixels, tuple(length / factor for length in box) if factor > 1 else box

  def _decoded_rows(self, bottom: int, factor: int) -> np.ndarray:
    """A JPEG's rows above `bottom`, and perhaps more, at 1 / factor of its size."""
    with self._errors_named():
      if self._jpeg:
        with contextlib.suppress(ValueError):  # Pillow says what is wrong, or decodes it after all.
          return jpeg.upper_rows(self._data, self._jpeg, bottom, factor, self._channels)
      if self._jpeg and self._open() != self.size:
        raise ValueError('it states its size twice, differently')
      reduced = (self._file.width // factor, self._file.height // factor) if factor > 1 else None
      # Straight to luma where that is wanted; the file allows only one call of draft.
      self._file.draft('L' if self._channels == 1 else None, reduced)
      return self._decoded()

  def _open(self) -> tuple[int, int]:
    """Opens the file with Pillow; height and width as its orientation has them."""
    with self._errors_named():
      self._file = Image.open(io.BytesIO(self._data))
      if self._file.format not in ('JPEG', 'MPO'):
        # Only a JPEG's header is sure to have the orientation; of the others the size is read after decoding.
        self._array = self._decoded()
        return self._array.shape[:2]
      width, height = self._file.size
      return (width, height) if self._orientation() in _SIDEWAYS else (height, width)

  def _decoded(self) -> np.ndarray:
    image, mode = self._file, _MODES[self._channels]
    image.load()
    if (turn := _TURNS.get(self._orientation())) is not None:
      image = image.transpose(turn)
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
    with contextlib.suppress(Exception):  # Pillow raises a dozen types on damaged metadata
      return self._file.getexif().get(ExifTags.Base.Orientation)
    return None

  @contextlib.contextmanager
  def _errors_named(self):
    bad = lambda text: BadImage(self._name, f'{self._name} {text} it.')
    try:
      yield
    except UserError:  # named already
      raise
    except MemoryError as error:  # no fault of the image
      raise UserError(
        f'There is not enough memory to decode {self._name}; free some, or remove it.'
      ) from error
    except Image.DecompressionBombError as error:
      raise bad(f'is refused ({str(error).rstrip(".")}); shrink or remove') from error
    except UnidentifiedImageError as error:
      raise bad('is not an image of a known format; remove or replace') from error
    except Exception as error:  # Pillow's decoders raise a dozen types on damaged data
      reason = str(error).strip().rstrip('.') or type(error).__name__
      raise bad(f'cannot be decoded ({reason}); restore or remove') from error


def _with_channels(image: np.ndarray, channels: int) -> np.ndarray:
  """uint8 (H, W) or (H, W, 1 or 3) as (H, W, channels)."""
  if image.ndim == 2:
    image = image[:, :, None]
  if image.shape[2] == channels:
    return image
  if channels == 3:
    return np.repeat(image, 3, axis=2)
  return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None]
