"""The texts of images that a model of two towers is trained and evaluated with: names of classes in prompts."""

from collections.abc import Sequence

import numpy as np

from vit_jax.data.sources.base import Record
from vit_jax.foundation.errors import UserError
from vit_jax.models.capabilities import TextTowerOptions
from vit_jax.objectives.base import Texts
from vit_jax.pretrained import formats, tokenizing
from vit_jax.pretrained.zero_shot import prompted


def tokenize(tokenizer: str, texts: Sequence[str], model: TextTowerOptions) -> np.ndarray:
  """int32 (texts, N): the numbers of the tokens of texts, by 'bytes' or the tokenizer of a folder.

  Raises UserError where there is no such tokenizer, or it has tokens that the model does not.
  """
  if tokenizer == 'bytes':
    numbers = tokenizing.byte_tokens(texts, model.text_length)
  else:
    numbers = tokenizing.tokenize(formats.located(tokenizer), texts, model.text_length)
  if numbers.max(initial=0) >= model.text_vocabulary:
    raise UserError(
      f'The tokenizer {tokenizer} has a token {numbers.max()}, and the model {model.text_vocabulary} tokens; set '
      'config.model.text_vocabulary to the number of the tokens, or take the tokenizer that the model was trained with.'
    )
  return numbers


class Captions:
  """Makes the text of a record: a prompt with the name of its class."""

  def __init__(self, texts: Texts, model: TextTowerOptions, class_names: Sequence[str]):
    """Raises UserError for a tokenizer that cannot be read."""
    self.length = model.text_length
    numbers = tokenize(texts.tokenizer, prompted(class_names, texts.prompts), model)
    self._tokens = numbers.reshape(len(class_names), len(texts.prompts), self.length)

  def of(self, record: Record, rng: np.random.Generator) -> np.ndarray:
    """int32 (N,): the tokens of one of the prompts."""
    return self._tokens[record.label, rng.integers(self._tokens.shape[1])]
