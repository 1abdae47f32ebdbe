"""The tables of transformers' Vision Transformers: names of tensors, defaults of config.json, activations."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.models.parts.activations import Activation
from vit_jax.models.position_resize import PositionResize
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained.base import Pretrained, UnknownModelError
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Rule, Tokens, attention, layer, norm

# How images are prepared where no file says it.
HALF = {'mean': (0.5, 0.5, 0.5), 'std': (0.5, 0.5, 0.5), 'antialias': True}
IMAGENET = {
  'mean': (0.485, 0.456, 0.406),
  'std': (0.229, 0.224, 0.225),
  'method': 'bicubic',
  'antialias': True,
}

# transformers' names of activations.
ACTIVATIONS: dict[str, Activation] = {
  'gelu': 'gelu',
  'gelu_python': 'gelu',
  'gelu_pytorch_tanh': 'gelu_tanh',
  'gelu_new': 'gelu_tanh',
  'gelu_fast': 'gelu_tanh',
  'gelu_python_tanh': 'gelu_tanh',
  'quick_gelu': 'quick_gelu',
  'silu': 'silu',
  'relu': 'relu',
}
WRITTEN_ACTIVATIONS = {'gelu_tanh': 'gelu_pytorch_tanh'}

ATTENTION = (
  *attention('blocks/attention/query', 'encoder.layer.{}.attention.attention.query'),
  *attention('blocks/attention/key', 'encoder.layer.{}.attention.attention.key'),
  *attention('blocks/attention/value', 'encoder.layer.{}.attention.attention.value'),
  *layer('blocks/attention/out', 'encoder.layer.{}.attention.output.dense', 'out'),
)
AROUND = (
  *layer('patch_embedding', 'embeddings.patch_embeddings.projection', 'conv'),
  *norm('norm', 'layernorm'),
)
# Tensors that logits do not depend on, and sentences on them.
UNUSED: dict[str, str | None] = {
  r'embeddings\.mask_token': 'The mask token, which only pre-training uses, is left out.',
  r'pooler\.dense\.\w+': 'The pooler, which the logits do not depend on, is left out.',
}
TOKENS = Tokens(position='embeddings.position_embeddings', class_token='embeddings.cls_token')
# The biases of queries, keys and values, which a folder may lack.
QKV_BIAS = (r'blocks/attention/(query|key|value)/bias', 'qkv_bias', True)
# The heads of class token and distillation token.
TWO_HEADS = ('cls_classifier', 'distillation_classifier')


@dataclasses.dataclass(frozen=True)
class Family:
  """A `model_type` of transformers."""

  stem: str  # of the names of its classes
  prefix: str  # of the encoder's tensors in a model that has more than the encoder
  # Which tensors our parameters are, without the prefix; those of parts that a model lacks are left aside.
  rules: tuple[Rule, ...]
  tokens: Tokens  # likewise
  defaults: Mapping[str, Any]  # what config.json has where it says nothing
  position_resize: PositionResize  # as its `interpolate_pos_encoding` does it
  preprocess: Mapping[str, Any]  # arguments of `Preprocess`, where no file says it
  # Of those, pixels of the shorter side for each pixel of the model's input; None: no cut.
  shorter: float | None = None
  # Biases that it may lack: a regex of our paths, the flag of config.json (None: it always lacks them) and its default.
  biases: tuple[tuple[str, str | None, bool], ...] = (QKV_BIAS,)
  # Tensors that logits do not depend on: a regex of their names without prefix, and a sentence (None: not worth one).
  ignored: Mapping[str, str | None] = dataclasses.field(default_factory=lambda: UNUSED)
  outside: tuple[Rule, ...] = ()  # rules of tensors that never have the prefix
  model: str = 'Model'  # the class without a head, behind the stem
  classifier: str | None = 'ForImageClassification'  # likewise with a head; None: there is none
  # Section of config.json that is about the vision tower beside a text tower, and is written of a classifier only;
  # None: all of it is.
  section: str | None = None
  square: bool = False  # whether images must be square
  # How the class of its image processor begins, where a file does not name it; '': as `stem`.
  processor: str = ''

  def common(self, values: JsonObject) -> dict[str, Any]:
    """Options of `ViTConfig` that are read alike of all kinds; `values` have the defaults of the family."""
    patch = values.sides('patch_size')
    if patch[0] != patch[1]:
      raise UnknownModelError(f'it has patches of {patch[0]} x {patch[1]}, and those of vit_jax are square')
    return {
      'variant': 'custom',
      'patch': patch[0],
      'width': values.integer('hidden_size', 768),
      'mlp_dim': values.integer('intermediate_size', 3072),
      'depth': values.integer('num_hidden_layers', 12),
      'heads': values.integer('num_attention_heads', 12),
      'position_resize': self.position_resize,
      'activation': values.choice('hidden_act', ACTIVATIONS, 'gelu'),
      'norm_epsilon': values.number('layer_norm_eps', 1e-6),
    }

  def written(
    self, pretrained: Pretrained, model: ViTConfig, params: Mapping[str, np.ndarray]
  ) -> dict[str, Any]:
    """What config.json says of all kinds."""
    sizes, (height, width) = model.sizes, pretrained.architecture.image_size
    return {
      'attention_probs_dropout_prob': model.attention_dropout,
      'dtype': 'float32',
      'hidden_act': WRITTEN_ACTIVATIONS.get(model.activation, model.activation),
      'hidden_dropout_prob': model.dropout,
      'hidden_size': sizes.width,
      'image_size': height if height == width else [height, width],
      'initializer_range': 0.02,
      'intermediate_size': sizes.mlp_dim,
      'layer_norm_eps': model.norm_epsilon,
      'num_attention_heads': sizes.heads,
      'num_channels': pretrained.architecture.channels,
      'num_hidden_layers': sizes.depth,
      'patch_size': sizes.patch,
    } | {
      flag: default or any(np.any(array) for path, array in params.items() if re.fullmatch(pattern, path))
      for pattern, flag, default in self.biases
      if flag is not None
    }

  def lacks(self, path: str, values: JsonObject) -> bool:
    """Whether a folder of that config.json lacks a bias of ours."""
    return any(
      re.fullmatch(pattern, path) and not (flag is not None and values.flag(flag, default))
      for pattern, flag, default in self.biases
    )

  def left_out(
    self, files: TensorFiles, prefix: str, read: set[str]
  ) -> tuple[frozenset[str], tuple[str, ...]]:
    """The tensors that are left out, which are not among those that are `read`, and sentences on them."""
    ignored, notes = set(), []
    for pattern, sentence in self.ignored.items():
      found = {name for name in files.shapes if re.fullmatch(pattern, name.removeprefix(prefix))} - read
      ignored |= found
      notes += [sentence] if found and sentence is not None else []
    return frozenset(ignored), tuple(notes)
