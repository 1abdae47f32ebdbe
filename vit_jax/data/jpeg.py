"""Decodes common JPEGs with libjpeg-turbo (simplejpeg), at a reduced scale and no more rows than needed.

Uncommon and damaged files are left to Pillow, which decodes common ones to the same pixels and says what is
wrong with damaged ones. Pillow also decodes everything on machines for which simplejpeg has no wheel.
"""

import contextlib
import math
import re
import struct
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image

try:
  import simplejpeg
except ImportError:
  simplejpeg = None

_START, _END = b'\xff\xd8', b'\xff\xd9'
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive; by Huffman codes
# Tables, metadata and comments, which precede the frame.
_TABLES = (0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0))
_METADATA = 0xE1
_TURNED_BY_XMP = re.compile(rb'tiff:Orientation(="|>)[2-8]')
_CONTEXT = 2  # rows below the last one wanted, which the interpolation of chroma reads


class Header(NamedTuple):
  """The size that a file states, and where it states it."""

  height: int
  width: int
  place: int  # offset of the height, in bytes


def read_header(data: bytes) -> Header | None:
  """The header of a common JPEG: 8 bits, gray or three colours, upright, complete, no bomb; None of any other file."""
  if simplejpeg is None or data[:2] != _START or data[-2:] != _END:
    return None
  position = 2
  while position + 10 <= len(data):
    start, marker, length = struct.unpack_from('>BBH', data, position)
    if start != 0xFF:
      return None
    if marker in _FRAMES:
      bits, height, width, components = struct.unpack_from('>BHHB', data, position + 4)
      harmless = 0 < height * width <= 2 * (Image.MAX_IMAGE_PIXELS or math.inf)
      common = bits == 8 and components in (1, 3) and harmless
      return Header(height, width, position + 5) if common else None
    if marker not in _TABLES:
      return None
    if marker == _METADATA and not _is_upright(data[position + 4 : position + 2 + length]):
      return None
    position += 2 + length
  return None


def _is_upright(segment: bytes) -> bool:
  """Whether a segment of metadata leaves the picture as it is; unreadable metadata does."""
  if not segment.startswith(b'Exif\0\0'):
    return _TURNED_BY_XMP.search(segment) is None
  exif = Image.Exif()
  with contextlib.suppress(Exception):  # Pillow raises a dozen types on damaged metadata
    exif.load(segment)
    return exif.get(ExifTags.Base.Orientation, 1) == 1
  return True


def upper_rows(data: bytes, header: Header, bottom: int, factor: int, channels: int) -> np.ndarray:
  """Decodes the rows above `bottom`, and possibly a few more, at 1 / factor of the size.

  A decoder works from top to bottom. If the header says that the image ends earlier, it stops there.

  Args:
    data, header: of the file.
    bottom: number of rows wanted, at full size.
    factor: 1, 2, 4 or 8.
    channels: 3 (RGB) or 1 (luma).

  Returns:
    uint8 (at least ⌈bottom / factor⌉, ⌈width / factor⌉, channels).

  Raises:
    ValueError: damaged data, or no simplejpeg here.
  """
  if simplejpeg is None:
    raise ValueError('simplejpeg is not installed')
  height = min(bottom + _CONTEXT, header.height)
  file: bytes | bytearray = data
  if height < header.height:
    file = bytearray(data)
    struct.pack_into('>H', file, header.place, height)
  return simplejpeg.decode_jpeg(
    file,
    'RGB' if channels == 3 else 'Gray',
    min_height=-(-height // factor),
    min_width=-(-header.width // factor),
    strict=False,  # libjpeg complains of the bytes left over in a file that is shortened on purpose
  )
