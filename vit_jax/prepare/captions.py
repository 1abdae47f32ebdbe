"""The captions of an image, as a table, a sample of WebDataset or a row of parquet has them."""

from typing import Any

from vit_jax.foundation.errors import UserError


def captions_of(value: Any, where: str) -> tuple[str, ...]:
  """The captions in a value: a text or a list of texts, stripped, without empty ones; () where there is none.

  Half of a character, which JSON may escape, becomes '?'. UserError for a value of another kind.
  """
  values = value if isinstance(value, list) else [value]
  if not all(each is None or isinstance(each, str) for each in values):
    raise UserError(f'{where} has the caption {repr(value)[:100]}; a caption is a text, or a list of texts.')
  texts = (each.encode(errors='replace').decode().strip() for each in values if each)
  return tuple(text for text in texts if text)
