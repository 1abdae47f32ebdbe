"""Decodes encoded images of any kind to uint8 pixels, and names every image that cannot be decoded.

The uncommon kinds: the orientation of EXIF, or of XMP, is applied where it can be read; palettes are resolved;
alpha is dropped, as TensorFlow's decoders do (not blended over a colour); CMYK, Adobe's inverted one too, is
converted without a colour profile; of 16 bits per channel the upper 8 are kept; an animation gives its first frame.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from vit_jax.data import jpeg
from vit_jax.data.opencv import opencv
from vit_jax.foundation.errors import BadImage, UserError

Box = tuple[float, float, float, float]  # top, left, height, width

# Pillow warns of damaged metadata, for which no image is refused here, and of large images below its limit.
warnings.filterwarnings('ignore', module=r'PIL\.')

_BITS, _PHOTOMETRIC = ExifTags.Base.BitsPerSample, ExifTags.Base.PhotometricInterpretation  # tags of a TIFF
# EXIF orientation -> the transposition that makes the picture upright.
_TRANSPOSITIONS = {
  2: Image.Transpose.FLIP_LEFT_RIGHT,
  3: Image.Transpose.ROTATE_180,
  4: Image.Transpose.FLIP_TOP_BOTTOM,
  5: Image.Transpose.TRANSPOSE,
  6: Image.Transpose.ROTATE_270,
  7: Image.Transpose.TRANSVERSE,
  8: Image.Transpose.ROTATE_90,
}
# What Pillow calls the metadata that may hold an orientation: EXIF, also as ImageMagick writes it into a PNG, and XMP.
_METADATA = ('exif', 'Raw profile type exif', 'xmp', 'XML:com.adobe.xmp')
_MODES = {1: 'L', 3: 'RGB'}  # channels -> what Pillow calls them
_SIDEWAYS = (5, 6, 7, 8)  # the orientations that swap height and width
# The orientations that turn the order of rows, and of columns, round.
_BACKWARDS = ((3, 4, 7, 8), (2, 3, 6, 7))
_REDUCTIONS = (8, 4, 2)  # the DCT of a JPEG decodes to 1/8, 1/4 or 1/2 of the size, and faster


class Picture:
  """An image whose size is known before its pixels are decoded.

  Attributes:
    size: height, width, after EXIF orientation.
  """

  def __init__(self, image: bytes | np.ndarray, channels: int, name: str):
    """Reads the header.

    Args:
      image: an encoded file, or uint8 pixels (H, W) or (H, W, C).
      channels: of the decoded pixels: 3 (RGB) or 1 (luma).
      name: what errors call the image.

    Raises:
      BadImage: not an image, or one with more pixels than Pillow's limit against decompression bombs.
    """
    self._channels, self._name = channels, name
    self._data = b''
    self._array: np.ndarray | None = None  # decoded pixels
    self._jpeg: jpeg.Header | None = None
    self._file: Image.Image | None = None  # opened by Pillow
    self.size: tuple[int, int]
    if isinstance(image, np.ndarray):
      self._array = image
      self.size = image.shape[0], image.shape[1]
      return
    if not image:
      raise BadImage(name, f'{name} is empty (0 bytes); restore or remove it.')
    self._data = image
    self._jpeg = jpeg.read_header(image)
    self.size = (self._jpeg.height, self._jpeg.width) if self._jpeg else self._open()

  @property
  def lasting(self) -> bytes | np.ndarray:
    """What to keep of an image that is needed again: its pixels, or the file of a JPEG, which is smaller."""
    return self._data if self._array is None else self._array

  def pixels(self, at_least: tuple[float, float] | None = None) -> np.ndarray:
    """The whole picture, uint8 (H', W', channels); arguments and errors as of `part`."""
    height, width = self.size
    return self.part((0, 0, height, width), at_least)[0]

  def part(self, box: Box, at_least: tuple[float, float] | None = None) -> tuple[np.ndarray, Box]:
    """Decodes as little as possible of the picture that contains `box`.

    Args:
      box: top, left, height, width of the part.
      at_least: a height and width of the part that suffice: a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if
        that is no smaller. None: at full size.

    Returns:
      uint8 (H', W', channels): the picture or its upper rows, possibly at a reduced scale.
      `box` in these pixels; at a reduced scale its numbers may be fractions.

    Raises:
      BadImage: a damaged file, or pixels of an unsupported kind.
    """
    if self._array is not None:
      return with_channels(self._array, self._channels), box
    top, left, height, width = box
    factor = _reduction(height, width, at_least) if at_least else 1
    pixels = with_channels(self._decode_rows(int(top + height), factor), self._channels)
    if factor == 1:
      return pixels, box
    down, right = self._before_first(factor)
    return pixels, (top / factor + down, left / factor + right, height / factor, width / factor)

  def _before_first(self, factor: int) -> tuple[float, float]:
    """How far the picture's top and left are within its reduced pixels: a file's last ones may be partly filled."""
    orientation = _orientation(self._file) if self._file else None
    down, right = (
      -side % factor / factor if orientation in backwards else 0.0
      for side, backwards in zip(self.size, _BACKWARDS, strict=True)
    )
    return down, right

  def _decode_rows(self, bottom: int, factor: int) -> np.ndarray:
    """The rows above `bottom` of a JPEG, and possibly more, at 1 / factor of its size."""
    with self._naming_errors():
      if self._jpeg:
        with contextlib.suppress(ValueError):  # Pillow says what is wrong, or decodes it after all.
          return jpeg.upper_rows(self._data, self._jpeg, bottom, factor, self._channels)
      if self._jpeg and self._open() != self.size:
        raise ValueError('it states its size twice, differently')
      assert self._file is not None
      reduced = (self._file.width // factor, self._file.height // factor) if factor > 1 else None
      # A JPEG can be decoded straight to luma; Pillow allows only one call of draft.
      self._file.draft('L' if self._channels == 1 else None, reduced)
      return eight_bits(upright(self._file), self._channels)

  def _open(self) -> tuple[int, int]:
    """Opens the file with Pillow; returns height and width after EXIF orientation."""
    with self._naming_errors():
      self._file = Image.open(io.BytesIO(self._data))
      if self._file.format not in ('JPEG', 'MPO'):
        # Only JPEGs are sure to have their orientation in the header; others have to be decoded first.
        self._array = eight_bits(upright(self._file), self._channels)
        return self._array.shape[0], self._array.shape[1]
      width, height = self._file.size
      return (width, height) if _orientation(self._file) in _SIDEWAYS else (height, width)

  @contextlib.contextmanager
  def _naming_errors(self) -> Iterator[None]:
    """Turns what Pillow and our code raise into errors that name the image."""
    try:
      yield
    except UserError:  # named already
      raise
    except MemoryError as error:  # not the image's fault
      raise UserError(
        f'There is not enough memory to decode {self._name}; free some, or remove it.'
      ) from error
    except Image.DecompressionBombError as error:
      raise self._bad(f'is refused ({str(error).rstrip(".")}); shrink or remove') from error
    except UnidentifiedImageError as error:
      raise self._bad('is not an image of a known format; remove or replace') from error
    except Exception as error:  # Pillow's decoders raise a dozen types on damaged data
      reason = str(error).strip().rstrip('.') or type(error).__name__
      raise self._bad(f'cannot be decoded ({reason}); restore or remove') from error

  def _bad(self, text: str) -> BadImage:
    return BadImage(self._name, f'{self._name} {text} it.')


def _reduction(height: float, width: float, at_least: tuple[float, float]) -> int:
  """The largest factor by which height and width may shrink without getting smaller than `at_least`."""
  fitting = (f for f in _REDUCTIONS if height >= f * at_least[0] and width >= f * at_least[1])
  return next(fitting, 1)


def eight_bits(image: Image.Image, channels: int) -> np.ndarray:
  """A decoded image of Pillow's, uint8 (H, W) or (H, W, channels); ValueError where it has no such conversion."""
  if image.mode.startswith('I;16'):
    return (np.asarray(image) >> 8).astype(np.uint8)
  if image.mode in ('I', 'F'):
    raise ValueError('it has 32 bits a pixel, and 8 or 16 are supported')
  if image.mode not in ('L', _MODES[channels]):
    image = image.convert(_MODES[channels])
  return np.asarray(image)


def upright(image: Image.Image) -> Image.Image:
  """An image, decoded if it is not yet, turned as its metadata says where that can be read."""
  image.load()
  orientation = _orientation(image)
  if image.format == 'TIFF' and image.mode.startswith('I;16'):
    image = _full_range(image)
  return image.transpose(_TRANSPOSITIONS[orientation]) if orientation in _TRANSPOSITIONS else image


def _full_range(image: Image.Image) -> Image.Image:
  """A TIFF of more than 8 bits with 0 black and 65,535 white, which Pillow leaves as they are in the file."""
  tags = getattr(image, 'tag_v2', {})
  (bits, *_), white_is_zero = tags.get(_BITS, (16,)), tags.get(_PHOTOMETRIC) == 0
  values = np.asarray(image).astype(np.uint16) << (16 - bits)
  return Image.fromarray(~values if white_is_zero else values)


def _orientation(image: Image.Image) -> int | None:
  # Most files have no such metadata; parsing it is slow.
  if image.format != 'TIFF' and not any(name in image.info for name in _METADATA):
    return None
  with contextlib.suppress(Exception):  # Pillow raises a dozen types on damaged metadata
    return image.getexif().get(ExifTags.Base.Orientation)
  return None


def with_channels(image: np.ndarray, channels: int) -> np.ndarray:
  """uint8 (H, W) or (H, W, 1 or 3) as (H, W, channels)."""
  if image.ndim == 2:
    image = image[:, :, None]
  if image.shape[2] == channels:
    return image
  if channels == 3:
    return np.repeat(image, 3, axis=2)
  cv2 = opencv()
  return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None]
