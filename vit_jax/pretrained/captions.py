"""The texts of images that two towers are trained and evaluated with: prompts with names of classes, or captions."""

from collections.abc import Sequence

import numpy as np

from vit_jax.data.sources.base import Record
from vit_jax.foundation.errors import UserError
from vit_jax.models.capabilities import TextTowerOptions
from vit_jax.pretrained import formats, tokenizing
from vit_jax.pretrained.tokenizing import Tokenize
from vit_jax.pretrained.zero_shot import prompted

CAPTION = '{text}'  # in a prompt, stands for what an image's own caption says


def tokenizer(name: str, model: TextTowerOptions) -> Tokenize:
  """'bytes', or the tokenizer of a folder, for a text tower.

  Raises UserError where there is no such tokenizer, and where a text has tokens that the model does not have.
  """
  length, vocabulary = model.text_length, model.text_vocabulary
  folder = None if name == 'bytes' else tokenizing.of_folder(formats.located(name), length)

  def tokenize(texts: Sequence[str]) -> np.ndarray:
    numbers = folder(texts) if folder else tokenizing.byte_tokens(texts, length)
    if numbers.max(initial=0) >= vocabulary:
      raise UserError(
        f'The tokenizer {name} has a token {numbers.max()}, and the model {vocabulary} tokens; set '
        'config.model.text_vocabulary to the number of the tokens, or take the tokenizer that the model was trained '
        'with.'
      )
    return numbers

  return tokenize


class Captions:
  """Makes the text of a record: one of the prompts, with the name of its class or its caption."""

  def __init__(
    self, prompts: Sequence[str], tokenize: Tokenize, model: TextTowerOptions, class_names: Sequence[str]
  ):
    self.length = model.text_length
    self._prompts, self._tokenize, self._names = prompts, tokenize, class_names
    # Of prompts with captions these are not used.
    self._of_classes = tokenize(prompted(class_names, prompts)).reshape(
      len(class_names), len(prompts), self.length
    )

  def of(self, record: Record, rng: np.random.Generator) -> np.ndarray:
    """int32 (N,): the tokens of one of the prompts; UserError where it needs a caption, and there is none."""
    number = int(rng.integers(len(self._prompts)))
    if CAPTION not in self._prompts[number]:
      return self._of_classes[record.label, number]
    if record.text is None:
      raise UserError(
        f'{record.name} has no caption for config.objective.prompts; take a folder with a .txt beside each image, or '
        "prompts of classes, such as 'a photo of a {}.'."
      )
    (prompt,) = prompted([self._names[int(record.label)]], [self._prompts[number]])
    return self._tokenize([prompt.replace(CAPTION, record.text())])[0]
