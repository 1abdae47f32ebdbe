"""OpenCV, imported where it is used: an installation that only runs models may lack it (docs/installing.md)."""

import types

from vit_jax.foundation import error_sentences
from vit_jax.foundation.errors import UserError


def opencv() -> types.ModuleType:
  """The module `cv2`; UserError where its package is not installed."""
  try:
    import cv2
  except ImportError as error:
    raise UserError(error_sentences.not_installed('cv2')) from error
  return cv2
