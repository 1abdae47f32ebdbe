"""OpenCV, imported where it is used: an installation that only runs models may lack it (docs/installing.md)."""

import types
from concurrent.futures import ThreadPoolExecutor

from vit_jax.foundation import error_sentences
from vit_jax.foundation.errors import UserError


def opencv() -> types.ModuleType:
  """The module `cv2`; UserError where its package is not installed."""
  try:
    import cv2
  except ModuleNotFoundError as error:
    raise UserError(error_sentences.not_installed('cv2')) from error
  return cv2


def decoding_threads(count: int) -> ThreadPoolExecutor:
  """Threads that decode images. OpenCV's own, which would compete with them, end: a setting of the whole process."""
  return ThreadPoolExecutor(count, 'decode', opencv().setNumThreads, (0,))
