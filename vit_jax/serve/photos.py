"""Photos out of requests: read, taken apart and decoded, each within limits that hold before memory is used."""

import asyncio
import base64
import binascii
import contextlib
import io
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from vit_jax.data.decode import Picture
from vit_jax.foundation.errors import UserError, first_line
from vit_jax.serve.served import Served

# Kinds of files that are decoded. Pillow knows others, for some of which it starts programs (EPS).
_KINDS = (
  'JPEG',
  'PNG',
  'WEBP',
  'GIF',
  'BMP',
  'TIFF',
  'AVIF',  # missing from some builds of Pillow
)
_LARGE = 4_000_000  # pixels of a photo that is decoded by itself
_BODIES = 8  # of the largest size that are in memory at a time
_one_large = threading.Lock()


@dataclass(frozen=True)
class Limits:
  """What a client may ask for."""

  bytes: int = 32 * 2**20  # of a request's body
  pixels: int = 50_000_000  # of a photo
  photos: int = 64  # in a request
  waiting: int = 256  # photos of all requests that have not been answered
  seconds: float = 30.0  # that a client may take to send a request, or to take its answer


class Photo(NamedTuple):
  """A file of a request."""

  name: str
  content: bytes


class PhotoReader:
  """Reads photos from requests: files of a form (multipart), or JSON {"images": [base64, …]}."""

  def __init__(self, limits: Limits):
    """Nothing is read yet."""
    self._limits = limits
    self._held = 0  # bytes of all bodies in memory

  @contextlib.asynccontextmanager
  async def photos(self, request: Request) -> AsyncIterator[list[Photo]]:
    """The photos of a request, which are in memory until the block ends.

    HTTPException, with a sentence: it is too large or slow, there is no room for it now, or it holds no photos.
    """
    kind, _ = parse_options_header(request.headers.get('content-type'))
    if kind not in (b'multipart/form-data', b'application/json'):
      said = 'Send photos as files of a form (multipart/form-data), or JSON {"images": [base64, …]}.'
      raise HTTPException(415, said)
    body = bytearray()
    try:
      await self._fill(body, request)
      found = await (self._of_form if kind.startswith(b'm') else self._of_json)(request, bytes(body))
      if not found:
        raise HTTPException(400, 'There is no photo in the request; add at least one file.')
      yield found
    finally:
      self._held -= len(body)

  async def _fill(self, body: bytearray, request: Request) -> None:
    """Reads the body, and counts its bytes."""
    limits = self._limits
    too_large = HTTPException(
      413, f'A request may have {limits.bytes:,} bytes; send fewer or smaller photos.'
    )
    if int(request.headers.get('content-length', 0)) > limits.bytes:
      raise too_large
    try:
      async with asyncio.timeout(limits.seconds):
        async for chunk in request.stream():
          body += chunk
          self._held += len(chunk)
          if len(body) > limits.bytes:
            raise too_large
          if self._held > _BODIES * limits.bytes:
            said = 'Too many photos are being sent at the same time; try again in a second.'
            raise HTTPException(429, said, {'Retry-After': '1'})
    except TimeoutError:
      said = f'The request has not arrived within {limits.seconds:g} seconds; send fewer photos at a time.'
      raise HTTPException(408, said, {'Connection': 'close'}) from None

  async def _of_form(self, request: Request, body: bytes) -> list[Photo]:
    parser = _WholeForm(request.headers, _once(body), max_files=self._limits.photos, max_fields=16)
    parser.spool_max_size = len(body) + 1  # nothing goes to the disk
    try:
      form = await parser.parse()
    except MultiPartException as error:
      raise HTTPException(
        400, f'The form cannot be read ({error.message.rstrip(".")}); send it again.'
      ) from error
    files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    found = [
      Photo((file.filename or f'image {number}')[:200], await file.read())
      for number, file in enumerate(files, 1)
    ]
    await form.close()
    if not parser.ended:
      raise HTTPException(400, 'The form is cut off; send it again.')
    return found

  async def _of_json(self, request: Request, body: bytes) -> list[Photo]:
    try:
      images = json.loads(body)['images']
      if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise TypeError('images is no list of texts')
    except (ValueError, KeyError, TypeError, RecursionError) as error:
      reason = first_line(error)
      raise HTTPException(
        400, f'The JSON is not {{"images": [base64, …]}} ({reason}); correct it.'
      ) from error
    if len(images) > self._limits.photos:
      raise HTTPException(400, f'A request may have {self._limits.photos} photos; send several requests.')
    found = []
    for number, image in enumerate(images, 1):
      try:
        found.append(Photo(f'image {number}', base64.b64decode(image, validate=True)))
      except (binascii.Error, ValueError) as error:
        raise HTTPException(400, f'images[{number - 1}] is not base64 ({error}); encode the file.') from error
    return found


class _WholeForm(MultiPartParser):
  """A parser that knows whether the form has come to its end."""

  ended = False

  def on_end(self) -> None:
    self.ended = True


async def _once(body: bytes):
  yield body


def prepared(photo: Photo, model: Served, limits: Limits) -> np.ndarray:
  """The model's input of a photo; HTTPException, with a sentence, where it is none or too large."""
  try:
    with Image.open(io.BytesIO(photo.content), formats=_KINDS) as image:
      pixels = image.width * image.height
  except Image.DecompressionBombError as error:
    said = f'{photo.name} has far more than {limits.pixels:,} pixels; shrink it.'
    raise HTTPException(413, said) from error
  except Exception as error:  # Pillow raises a dozen types on damaged headers
    raise HTTPException(
      400, f'{photo.name} is no image of a known kind; send one of {", ".join(_KINDS)}.'
    ) from error
  if pixels > limits.pixels:
    said = f'{photo.name} has {pixels:,} pixels, and {limits.pixels:,} are the most; shrink it.'
    raise HTTPException(413, said)
  with _one_large if pixels > _LARGE else contextlib.nullcontext():  # memory for one is enough
    try:
      return model.prepare(Picture(photo.content, model.channels, photo.name).pixels())
    except UserError as error:
      raise HTTPException(400, str(error)) from error
