"""What the Vision Transformers of transformers share: `config.json`, tensor names, how images are prepared.

Each kind has a file of its own: transformers_vit.py (ViT, DeiT) and transformers_dinov2.py.
"""

import abc
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from vit_jax.models.base import Architecture
from vit_jax.models.parts.mlps import Activation
from vit_jax.models.position_resize import PositionResize
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import preprocessor_config
from vit_jax.pretrained.base import Pretrained, ReadOptions, UnknownModelError, with_told
from vit_jax.pretrained.huggingface import FolderFormat, Unfit, config_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import HEAD_PATHS, Export, Layout, Rule, Tokens, attention, layer, norm

# How images are prepared where no file says it.
HALF = {'mean': (0.5, 0.5, 0.5), 'std': (0.5, 0.5, 0.5), 'antialias': True}
IMAGENET = {
  'mean': (0.485, 0.456, 0.406),
  'std': (0.229, 0.224, 0.225),
  'method': 'bicubic',
  'antialias': True,
}

# transformers' names of the exact GELU and of its tanh approximation.
_ACTIVATIONS: dict[str, Activation] = {
  'gelu': 'gelu',
  'gelu_python': 'gelu',
  'gelu_pytorch_tanh': 'gelu_tanh',
  'gelu_new': 'gelu_tanh',
  'gelu_fast': 'gelu_tanh',
  'gelu_python_tanh': 'gelu_tanh',
}
_WRITTEN_ACTIVATIONS = {'gelu': 'gelu', 'gelu_tanh': 'gelu_pytorch_tanh'}

ATTENTION = (
  *attention('blocks/attention/query', 'encoder.layer.{}.attention.attention.query'),
  *attention('blocks/attention/key', 'encoder.layer.{}.attention.attention.key'),
  *attention('blocks/attention/value', 'encoder.layer.{}.attention.attention.value'),
  *layer('blocks/attention/out', 'encoder.layer.{}.attention.output.dense', 'out'),
)
_AROUND = (
  *layer('patch_embedding', 'embeddings.patch_embeddings.projection', 'conv'),
  *norm('norm', 'layernorm'),
)
# The heads of class token and distillation token.
_TWO_HEADS = ('cls_classifier', 'distillation_classifier')


MULTI_LABEL = 'multi_label_classification'  # the `problem_type` of a head trained with sigmoids


@dataclasses.dataclass(frozen=True)
class Family:
  """A `model_type` of transformers."""

  stem: str  # of the names of its classes
  block: tuple[Rule, ...]  # which tensors the parameters of a block are
  patch: int  # pixels along a side of a patch, where config.json does not say it
  norm_epsilon: float  # likewise of every LayerNorm
  position_resize: PositionResize  # as its `interpolate_pos_encoding` does it
  preprocess: Mapping[str, Any]  # arguments of `Preprocess`, where no file says it
  # Of those, pixels of the shorter side for each pixel of the model's input; None: no cut.
  shorter: float | None = None
  # The tensor that is our register tokens, or our distillation token; None: it has none.
  registers: str | None = None
  positioned: int = 1  # tokens before the patches that have a position


class TransformersFormat(FolderFormat):
  """A kind of folder that transformers' `save_pretrained` writes."""

  tellable = frozenset({'activation', 'norm_epsilon'})
  # By `model_type`.
  families: ClassVar[Mapping[str, Family]]
  # What the head of such a folder reads.
  head_pool: ClassVar[Literal['token', 'token_gap']] = 'token'
  # Sentences about every such folder without a head of the distillation token.
  notes: ClassVar[tuple[str, ...]] = ()

  @abc.abstractmethod
  def model(self, values: JsonObject, common: Mapping[str, Any]) -> ViTConfig:
    """The config of our model (UserError: we have none); `common` are options of `ViTConfig` that all kinds share."""

  def recognises(self, path: pathlib.Path) -> bool:
    values = config_of(path)
    return values is not None and values.raw('model_type') in list(self.families)

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    folder = values.path.parent
    model_type = values.text('model_type')
    family = self.families[model_type]
    prefix = files.prefix(model_type + '.')
    head, num_classes = _head(files)
    model = with_told(folder, self.model(values, _common(values, family)), options.told)
    if head is not None:
      model = dataclasses.replace(model, pool=self.head_pool)
    if head in _TWO_HEADS and family.registers is not None:
      model = dataclasses.replace(model, register_tokens=0, distillation_token=True)
    model, ignored, notes = _without_what_logits_ignore(files, values, model, prefix, head)
    if not model.distillation_token:
      notes = self.notes + notes
    zeros = frozenset(
      rule.path for rule in ATTENTION if rule.form == 'flat' and not values.flag('qkv_bias', True)
    )
    if zeros:
      notes += ('Queries, keys and values have no bias: ours are zeros, which training would change.',)
    image_size, channels = values.sides('image_size', 224), values.integer('num_channels', 3)
    default = dict(family.preprocess)
    if family.shorter is not None:
      default['shorter'] = round(max(image_size) * family.shorter)
    preprocess, about_images = preprocessor_config.read(
      folder, image_size=image_size, channels=channels, default=default
    )
    return Layout(
      architecture=Architecture(model, image_size, channels, num_classes),
      rules=_rules(family, prefix, head, model),
      tokens=_tokens(family, prefix, model),
      preprocess=preprocess,
      class_names=values.class_names(num_classes),
      zeros=zeros,
      ignored=ignored,
      notes=notes + about_images,
      link='sigmoid' if values.text('problem_type') == MULTI_LABEL else 'softmax',
    )

  def export_as(
    self,
    pretrained: Pretrained,
    model: ViTConfig,
    model_type: str,
    values: Mapping[str, Any],
    constants: Mapping[str, np.ndarray] | None = None,
  ) -> Export:
    """What a folder of a family is to hold; Unfit where transformers has no such model.

    `values` are those of config.json beside what all kinds have, `constants` tensors that we do not have, by name
    without prefix.
    """
    family = self.families[model_type]
    head, notes = _written_head(pretrained, model)
    prefix = '' if head is None else model_type + '.'
    kind = 'Model' if head is None else 'ForImageClassification'
    if head in _TWO_HEADS:
      kind += 'WithTeacher'
    config = _written_config(pretrained, model) | {
      'architectures': [family.stem + kind],
      'model_type': model_type,
      **values,
    }
    config |= written_classes(pretrained, head=head is not None)
    if model.pre_logits_size is not None:
      config |= {'pooler_act': 'tanh', 'pooler_output_size': model.pre_logits_size}
    text, about_images = preprocessor_config.write(pretrained.preprocess)
    return Export(
      rules=_rules(family, prefix, head, model),
      tokens=_tokens(family, prefix, model),
      config=config,
      texts={preprocessor_config.FILE: text},
      constants={prefix + name: array for name, array in (constants or {}).items()},
      dropped=HEAD_PATHS if head is None else frozenset(),
      notes=notes + about_images,
    )


def written_classes(pretrained: Pretrained, *, head: bool) -> dict[str, Any]:
  """What a config.json says of the classes of a model with a head, and of its link."""
  config: dict[str, Any] = {}
  if pretrained.link == 'sigmoid':
    config['problem_type'] = MULTI_LABEL
  if head:
    classes = pretrained.architecture.num_classes
    names = pretrained.class_names or tuple(f'LABEL_{i}' for i in range(classes))
    config['id2label'] = {str(i): name for i, name in enumerate(names)}
    config['label2id'] = {name: i for i, name in enumerate(names)}
  return config


def _common(values: JsonObject, family: Family) -> dict[str, Any]:
  """Options of `ViTConfig` that are read alike of all kinds."""
  patch = values.sides('patch_size', family.patch)
  if patch[0] != patch[1]:
    raise UnknownModelError(f'it has patches of {patch[0]} x {patch[1]}, and those of vit_jax are square')
  return {
    'variant': 'custom',
    'patch': patch[0],
    'width': values.integer('hidden_size', 768),
    'depth': values.integer('num_hidden_layers', 12),
    'heads': values.integer('num_attention_heads', 12),
    'pool': 'token',
    'position_resize': family.position_resize,
    'activation': values.choice('hidden_act', _ACTIVATIONS, 'gelu'),
    'norm_epsilon': values.number('layer_norm_eps', family.norm_epsilon),
  }


def _without_what_logits_ignore(
  files: TensorFiles, values: JsonObject, model: ViTConfig, prefix: str, head: str | None
) -> tuple[ViTConfig, frozenset[str], tuple[str, ...]]:
  """The model, with the pooler of a folder without head, the tensors that are left out, and sentences on them."""
  ignored, notes = set(), []
  mask_token = prefix + 'embeddings.mask_token'
  if mask_token in files.shapes:
    ignored.add(mask_token)
    notes.append('The mask token, which only pre-training uses, is left out.')
  pooler = {prefix + 'pooler.dense.weight', prefix + 'pooler.dense.bias'} & files.shapes.keys()
  if pooler and head is not None:
    ignored |= pooler
    notes.append('The pooler, which the logits do not depend on, is left out.')
  elif pooler:
    activation = values.text('pooler_act', 'tanh')
    if activation != 'tanh':
      raise UnknownModelError(f'it has a pooler with {activation!r}, and vit_jax has tanh only')
    size = files.shapes.get(prefix + 'pooler.dense.bias', (model.sizes.width,))[0]
    model = dataclasses.replace(model, pre_logits_size=size)
  return model, frozenset(ignored), tuple(notes)


def _written_head(pretrained: Pretrained, model: ViTConfig) -> tuple[str | None, tuple[str, ...]]:
  """The name of the head that is written, and a sentence where none is although there are classes."""
  num_classes = pretrained.architecture.num_classes
  if model.pre_logits_size is None:
    head = _TWO_HEADS[0] if model.distillation_token else 'classifier'
    return (head if num_classes else None), ()
  if not num_classes:
    return None, ()
  if any(np.asarray(leaf).any() for leaf in pretrained.params['head'].values()):
    raise Unfit(
      f'it has no layer between pooling and head, and this model has one (pre_logits_size '
      f'{model.pre_logits_size})'
    )
  return None, (f'The head of {num_classes} classes, all zeros, is left out.',)


def _written_config(pretrained: Pretrained, model: ViTConfig) -> dict[str, Any]:
  """What config.json says of all kinds."""
  sizes, (height, width) = model.sizes, pretrained.architecture.image_size
  return {
    'attention_probs_dropout_prob': model.attention_dropout,
    'dtype': 'float32',
    'hidden_act': _WRITTEN_ACTIVATIONS[model.activation],
    'hidden_dropout_prob': model.dropout,
    'hidden_size': sizes.width,
    'image_size': height if height == width else [height, width],
    'initializer_range': 0.02,
    'layer_norm_eps': model.norm_epsilon,
    'num_attention_heads': sizes.heads,
    'num_channels': pretrained.architecture.channels,
    'num_hidden_layers': sizes.depth,
    'patch_size': sizes.patch,
    'qkv_bias': True,
  }


def _rules(family: Family, prefix: str, head: str | None, model: ViTConfig) -> tuple[Rule, ...]:
  rules = [*_AROUND, *family.block]
  if model.pre_logits_size is not None:
    rules += layer('pre_logits', 'pooler.dense')
  rules = [dataclasses.replace(rule, name=prefix + rule.name) for rule in rules]
  if head is not None:
    rules += layer('head', head)
    if model.distillation_token:
      rules += layer('distillation_head', _TWO_HEADS[1])
  return tuple(rules)


def _tokens(family: Family, prefix: str, model: ViTConfig) -> Tokens:
  return Tokens(
    position=prefix + 'embeddings.position_embeddings',
    class_token=prefix + 'embeddings.cls_token',
    registers=None if family.registers is None else prefix + family.registers,
    positioned=family.positioned,
    registers_path='distillation_token' if model.distillation_token else 'register_tokens',
  )


def _head(files: TensorFiles) -> tuple[str | None, int]:
  """The name of the head that class tokens go to, and its classes."""
  for head in ('classifier', _TWO_HEADS[0]):
    shape = files.shapes.get(f'{head}.weight')
    if shape:
      return head, shape[0]
  return None, 0
