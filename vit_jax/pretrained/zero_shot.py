"""A classifier from the names of classes: the head of a model that was trained beside a text tower (CLIP, SigLIP).

The kernel's columns are the features of the texts, scaled as the logits of pairs are (arXiv 2103.00020, section 3.1).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.capabilities import ComparesTexts
from vit_jax.models.text_tower import TextConfig, TextTower, text_head
from vit_jax.pretrained import tokenizing
from vit_jax.pretrained.base import Link, Pretrained
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.tensor_names import some
from vit_jax.pretrained.torch_names import Rule, expected, gather

# A note about a model that is read without the names of classes.
LEFT_OUT = (
  'The text tower is left out; names of classes (predict --classes, load(classes=…)) make a head of it.'
)
_TEXTS = 256  # at a time


class TextLayout(NamedTuple):
  """What a folder holds of a text tower, and where."""

  config: TextConfig
  length: int  # tokens of a text, N
  rules: tuple[Rule, ...]  # which tensor each parameter of the tower is in
  embedding: str  # tensor of the tokens' embeddings, (vocabulary, D)
  positions: str  # likewise of their positions, (N, D)
  # Number of the token behind a text, whose features are the text's; None: the largest number; -1: the last of all N.
  end: int | None
  scale: str  # tensor of the logarithm of what cosines are multiplied by
  bias: str | None  # likewise of what is added then
  link: Link


class Texts(NamedTuple):
  """Texts as a head: the logits are scale * cosine + bias."""

  features: np.ndarray  # float32 (K, P), each of length 1
  scale: float
  bias: float
  link: Link


def read(files: TensorFiles, layout: TextLayout, texts: Sequence[str], padding: int | None = None) -> Texts:
  """The features of texts; UserError where there is no tokenizer or text tower, or texts are cut to the same.

  `padding` is the number that fills a text up; None: the one that the folder says.
  """
  folder = files.source if files.source.is_dir() else files.source.parent
  ids = tokenizing.distinct(texts, tokenizing.of_folder(folder, layout.length, padding))
  tower = _tower(files, layout)
  table, positions = files.read(layout.embedding), files.read(layout.positions)
  if ids.max(initial=0) >= len(table):
    raise UserError(
      f'The tokenizer in {folder} has a token {ids.max()}, and the model {len(table)} tokens; get the files that '
      'belong together.'
    )
  if layout.end == -1:
    ends = np.full(len(ids), ids.shape[1] - 1)
  else:
    ends = (ids if layout.end is None else ids == layout.end).argmax(axis=1)
  compute = jax.jit(lambda tower, tokens, ends: tower(tokens, ends))
  features = _in_parts(lambda part, ends: compute(tower, table[part] + positions, ends), ids, ends)
  bias = 0.0 if layout.bias is None else files.read(layout.bias).item()
  return Texts(features, math.exp(files.read(layout.scale).item()), bias, layout.link)


def of_network(pretrained: Pretrained, numbers: np.ndarray) -> Texts:
  """Texts by the text tower of two towers that were read as a whole, from the numbers of their tokens, int (K, N)."""
  network: Any = nnx.merge(pretrained.architecture.graph_and_shapes()[0], pretrained.params)
  assert isinstance(network, ComparesTexts), 'its options have a text tower'
  compute = jax.jit(lambda network, numbers: network.text_features(numbers))
  features = _in_parts(lambda part: compute(network, part), numbers)
  scale, bias = (each.item() for each in network.scale_and_bias())
  return Texts(features, scale, bias, pretrained.link)


def _in_parts(compute: Callable[..., jax.Array], *arrays: np.ndarray) -> np.ndarray:
  """What is computed of the rows of arrays, some of them at a time."""
  firsts = range(0, len(arrays[0]), _TEXTS)
  with jax.default_matmul_precision('highest'):
    parts = [np.asarray(compute(*(array[first : first + _TEXTS] for array in arrays))) for first in firsts]
  return np.concatenate(parts)


def _tower(files: TensorFiles, layout: TextLayout) -> TextTower:
  """The tower with its parameters; UserError where a tensor is missing or of another shape."""
  graphdef, variables = nnx.split(nnx.eval_shape(lambda: TextTower(layout.config, nnx.Rngs(0))))
  shapes = pytrees.flatten(nnx.to_pure_dict(variables))
  rules, width = [rule for rule in layout.rules if rule.path in shapes], layout.config.sizes.width
  wanted = expected(rules, shapes) | {layout.positions: (layout.length, width)}
  others = [name for name in (layout.embedding, layout.scale, layout.bias) if name is not None]
  wrong = [name for name in others if name not in files.shapes]
  wrong += [name for name, shape in wanted.items() if files.shapes.get(name) != shape]
  if wrong:
    raise UserError(
      f'{files.source} has no tensor {some(wrong)} as its text tower calls for; get the folder again.'
    )
  return nnx.merge(graphdef, pytrees.unflatten(gather(rules, shapes, files.read)))


def with_head(pretrained: Pretrained, texts: Texts, classes: Sequence[str]) -> Pretrained:
  """The image tower with a head that compares images with classes.

  `texts` are those of `prompted` texts, as many for each class; a class is the mean of them, scaled to length 1 again.
  """
  model = pretrained.architecture.model
  head = text_head(texts.features, len(classes), texts.scale, texts.bias)
  architecture = dataclasses.replace(
    pretrained.architecture, model=model.with_cosine_head(), num_classes=len(classes)
  )
  tower = pretrained.part(architecture)
  return dataclasses.replace(
    tower,
    params=tower.params | {'head': jax.tree.map(np.asarray, head)},
    class_names=tuple(classes),
    notes=tuple(note for note in pretrained.notes if note != LEFT_OUT),
    link=texts.link,
  )


def prompted(classes: Sequence[str], prompts: Sequence[str]) -> list[str]:
  """The texts of each class in turn: the prompts with its name in the place of {}."""
  return [prompt.replace('{}', name) for name in classes for prompt in prompts]
