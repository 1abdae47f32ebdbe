"""Texts to the numbers of their tokens: bytes, or the tokenizer that lies in a folder (the package tokenizers)."""

import pathlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax.foundation.errors import UserError
from vit_jax.pretrained.json_values import JsonObject

# Texts to the numbers of their tokens, int32 (texts, length).
Tokenize = Callable[[Sequence[str]], np.ndarray]
_CONFIG = 'tokenizer_config.json'
_END, _FIRST_BYTE = 1, 3  # of ByT5 (arXiv 2105.13626), where 0 fills a text up


def byte_tokens(texts: Sequence[str], length: int) -> np.ndarray:
  """int32 (texts, length): the bytes of each text in UTF-8 and the end, numbered as ByT5's; the end is never cut."""
  result = np.zeros((len(texts), length), np.int32)
  for row, text in zip(result, texts, strict=True):
    numbers = [_FIRST_BYTE + byte for byte in text.encode()[: length - 1]] + [_END]
    row[: len(numbers)] = numbers
  return result


def distinct(texts: Sequence[str], tokenize: Tokenize) -> np.ndarray:
  """The tokens of texts of classes; UserError where other letters or digits have the same, as where they were cut."""
  numbers = tokenize(texts)
  first: dict[bytes, str] = {}
  for text, row in zip(texts, numbers, strict=True):
    other = first.setdefault(row.tobytes(), text)
    if _letters(other) != _letters(text):
      raise UserError(
        f'The texts {other!r} and {text!r} have the same {len(row)} tokens, and nothing would tell them apart; take '
        'shorter texts, or train with a larger config.model.text_length.'
      )
  return numbers


def _letters(text: str) -> str:
  return ''.join(filter(str.isalnum, text)).casefold()


def of_folder(folder: pathlib.Path, length: int, padding: int | None = None) -> Tokenize:
  """The tokenizer of a folder: each text gets its special tokens, is cut to `length`, or padded as the folder says.

  With `padding` it is filled up by this number.

  Raises:
    UserError: the folder has no tokenizer, or it cannot be read.
  """
  tokenizers, values = _package(), _values(folder / _CONFIG)
  file = folder / 'tokenizer.json'
  if not file.is_file():
    raise UserError(
      f'{folder} has no tokenizer.json, by which class names become tokens; get it from where the folder is from.'
    )
  try:
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
  except Exception as error:  # the library raises nothing more special
    raise UserError(f'The tokenizer in {folder} cannot be read ({error}); get the folder again.') from error
  # transformers takes SigLIP 2's for each model of that type, whatever the folder says.
  siglip2 = (
    values.text('tokenizer_class').startswith('Siglip2')
    or _values(folder / 'config.json').text('model_type') == 'siglip2'
  )
  left = values.text('padding_side', 'left' if siglip2 else 'right') == 'left'
  tokenizer.no_padding()
  tokenizer.enable_truncation(length)
  filling = _padding(values, tokenizer) if padding is None else padding

  def tokenize(texts: Sequence[str]) -> np.ndarray:
    if siglip2:  # which transformers adds, whatever the file says
      texts = [text.lower() for text in texts]
    ids = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
    result = np.full((len(ids), length), filling, np.int32)
    for row, numbers in zip(result, ids, strict=True):
      row[slice(length - len(numbers), None) if left else slice(len(numbers))] = numbers
    return result

  return tokenize


def _values(path: pathlib.Path) -> JsonObject:
  """What a file says; nothing where there is none."""
  return JsonObject.read(path) if path.exists() else JsonObject(path, {})


def _padding(values: JsonObject, tokenizer: Any) -> int:
  """The number of the token that fills a text up; 0 where no file names one."""
  token = values.raw('pad_token')
  token = token.get('content') if isinstance(token, dict) else token
  number = tokenizer.token_to_id(token) if isinstance(token, str) else None
  return 0 if number is None else number


def _package() -> types.ModuleType:
  """The package tokenizers, which only those need who make a head of texts."""
  try:
    import tokenizers
  except ImportError:
    raise UserError(
      "Class names become tokens by the package tokenizers: pip install 'vit_jax[huggingface]'."
    ) from None
  return tokenizers
