"""Texts to the numbers of their tokens, by the tokenizer that lies in a folder (the package tokenizers)."""

import pathlib
import types
from collections.abc import Sequence

import numpy as np

from vit_jax.foundation.errors import UserError
from vit_jax.pretrained.json_values import JsonObject

_CONFIG = 'tokenizer_config.json'
# How CLIP cuts a text into words (transformers' CLIPTokenizer).
_CLIP_WORDS = (
  r"""<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""
)
_START, _END = '<|startoftext|>', '<|endoftext|>'


def tokenize(folder: pathlib.Path, texts: Sequence[str], length: int) -> np.ndarray:
  """int32 (texts, length): each text with its special tokens, cut to `length`, or padded behind as the folder says.

  Raises:
    UserError: the folder has no tokenizer, or it cannot be read.
  """
  tokenizers, values = _package(), JsonObject(folder / _CONFIG, {})
  if values.path.exists():
    values = JsonObject.read(values.path)
  try:
    tokenizer = _tokenizer(tokenizers, folder)
  except UserError:
    raise
  except Exception as error:  # the library raises nothing more special
    raise UserError(f'The tokenizer in {folder} cannot be read ({error}); get the folder again.') from error
  if values.text('tokenizer_class').startswith('Siglip2'):  # which transformers adds, whatever the file says
    texts = [text.lower() for text in texts]
  tokenizer.no_padding()
  tokenizer.enable_truncation(length)
  ids = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
  result = np.full((len(ids), length), _padding(values, tokenizer), np.int32)
  for row, numbers in zip(result, ids, strict=True):
    row[: len(numbers)] = numbers
  return result


def _tokenizer(tokenizers: types.ModuleType, folder: pathlib.Path):  # -> tokenizers.Tokenizer
  """That of tokenizer.json, or else of the two files that OpenAI's CLIP has."""
  if (folder / 'tokenizer.json').is_file():
    return tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  vocabulary, merges = folder / 'vocab.json', folder / 'merges.txt'
  if not vocabulary.is_file() or not merges.is_file():
    raise UserError(
      f'{folder} has no tokenizer.json, by which class names become tokens; get it from where the folder is from.'
    )
  return _of_clip(tokenizers, vocabulary, merges)


def _of_clip(tokenizers: types.ModuleType, vocabulary: pathlib.Path, merges: pathlib.Path):
  model = tokenizers.models.BPE.from_file(
    str(vocabulary), str(merges), end_of_word_suffix='</w>', unk_token=_END
  )
  tokenizer, normalizers = tokenizers.Tokenizer(model), tokenizers.normalizers
  spaces = normalizers.Replace(tokenizers.Regex(r'\s+'), ' ')
  tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
  words = tokenizers.pre_tokenizers.Split(tokenizers.Regex(_CLIP_WORDS), 'removed', invert=True)
  of_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([words, of_bytes])
  ends = [(token, tokenizer.token_to_id(token)) for token in (_END, _START)]
  tokenizer.post_processor = tokenizers.processors.RobertaProcessing(*ends, False, False)
  return tokenizer


def _padding(values: JsonObject, tokenizer) -> int:
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
