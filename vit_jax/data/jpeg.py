"""The common JPEG by libjpeg-turbo (simplejpeg): at a reduced scale, and no further down than is needed.

Whatever is uncommon or damaged is left to Pillow, which gives the same pixels of what both decode, and says
what is wrong with the rest. Pillow also stands in where there is no wheel of simplejpeg.
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
_TABLES = (0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0))  # and comments: what may come before the frame
_METADATA = 0xE1
_TURNED_BY_XMP = re.compile(rb'tiff:Orientation(="|>)[2-8]')
# Of the rows below: what the interpolation of chroma looks at.
_CONTEXT = 2


class Header(NamedTuple):
  """Where a file says its size."""

  height: int
  width: int
  place: int  # of the height, in bytes


def read_header(data: bytes) -> Header | None:
  """The size of a common JPEG: 8 bits, gray or three colours, upright, complete, no decompression bomb.

  None: it is something else.
  """
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
  """Whether metadata leave the picture as it is, as those do that cannot be read."""
  if not segment.startswith(b'Exif\0\0'):
    return _TURNED_BY_XMP.search(segment) is None
  exif = Image.Exif()
  with contextlib.suppress(Exception):  # Pillow raises a dozen types on damaged metadata
    exif.load(segment)
    return exif.get(ExifTags.Base.Orientation, 1) == 1
  return True


def upper_rows(data: bytes, header: Header, bottom: int, factor: int, channels: int) -> np.ndarray:
  """The rows above `bottom`, and perhaps some more, at 1 / factor of the size.

  A decoder goes from top to bottom. Told, in the header, that the image ends sooner, it stops there.

  Args:
    data: the file.
    header: of it.
    bottom: number of rows wanted, at full size.
    factor: 1, 2, 4 or 8.
    channels: 3 (RGB) or 1 (luma).

  Returns:
    uint8 (at least ⌈bottom / factor⌉, ⌈width / factor⌉, channels).

  Raises:
    ValueError: damaged data.
  """
  height = min(bottom + _CONTEXT, header.height)
  if height < header.height:
    data = bytearray(data)
    struct.pack_into('>H', data, header.place, height)
  return simplejpeg.decode_jpeg(
    data,
    'RGB' if channels == 3 else 'Gray',
    min_height=-(-height // factor),
    min_width=-(-header.width // factor),
    strict=False,  # Of a file cut short on purpose libjpeg says that bytes are left over.
  )
