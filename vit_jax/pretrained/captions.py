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
  """Makes the text of a record: one of the prompts, with the name of its class or one of its captions."""

  def __init__(
    self, prompts: Sequence[str], tokenize: Tokenize, model: TextTowerOptions, class_names: Sequence[str]
  ):
    """Raises UserError for a prompt with the names of classes where there are none, or they are cut to the same."""
    of_classes = [prompt for prompt in prompts if _names_class(prompt)]
    if of_classes and not class_names:
      raise UserError(
        f'config.objective.prompts has {of_classes[0]!r}, and the data has captions and no classes; write '
        f'--config.objective.prompts="(\'{CAPTION}\',)".'
      )
    self.length = model.text_length
    self._prompts, self._tokenize, self._names = prompts, tokenize, class_names
    # Of each prompt without a caption: int32 (K, N).
    self._of_classes = {
      prompt: tokenizing.distinct(prompted(class_names, [prompt]), tokenize)
      for prompt in prompts
      if CAPTION not in prompt
    }

  def of(self, record: Record, rng: np.random.Generator) -> np.ndarray:
    """int32 (N,): the tokens of one of the prompts; UserError where it needs a caption or a class that there is not."""
    prompt, label = self._prompts[int(rng.integers(len(self._prompts)))], int(record.label)
    if _names_class(prompt):
      if label < 0:
        raise UserError(
          f'{record.name} has no class for the prompt {prompt!r}; leave that out of config.objective.prompts.'
        )
      if prompt in self._of_classes:
        return self._of_classes[prompt][label]
      (prompt,) = prompted([self._names[label]], [prompt])
    if record.captions is None:
      raise UserError(
        f'{record.name} has no caption for config.objective.prompts; take a folder with a .txt beside each image, data '
        "prepared with --caption_column, or prompts of classes, such as 'a photo of a {}.'."
      )
    texts = record.captions()
    text = texts[int(rng.integers(len(texts)))] if len(texts) > 1 else texts[0]
    return self._tokenize([prompt.replace(CAPTION, text)])[0]


def _names_class(prompt: str) -> bool:
  """Whether a prompt's text depends on the class of an image, and not on its caption alone."""
  return '{}' in prompt or CAPTION not in prompt
