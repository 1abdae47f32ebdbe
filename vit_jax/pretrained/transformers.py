"""What the Vision Transformers of transformers share: `config.json`, tensor names, how images are prepared.

Each kind has a file of its own (transformers_vit.py, transformers_clip.py, …) with its table: a `Family` of names and
defaults, and two functions between its config.json and our options. A kind can hold a model where what it would write
is read as that model again.
"""

import abc
import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from vit_jax.foundation import pytrees
from vit_jax.models.base import Architecture, Grid
from vit_jax.models.parts.mlps import Activation
from vit_jax.models.position_resize import PositionResize
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import preprocessor_config
from vit_jax.pretrained.base import Pretrained, ReadOptions, UnknownModelError, with_told
from vit_jax.pretrained.huggingface import FolderFormat, Unfit, config_of, vit_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import (
  HEAD_PATHS,
  Derived,
  Export,
  Layout,
  Rule,
  Tokens,
  attention,
  layer,
  norm,
)

# How images are prepared where no file says it.
HALF = {'mean': (0.5, 0.5, 0.5), 'std': (0.5, 0.5, 0.5), 'antialias': True}
IMAGENET = {
  'mean': (0.485, 0.456, 0.406),
  'std': (0.229, 0.224, 0.225),
  'method': 'bicubic',
  'antialias': True,
}

# transformers' names of activations.
_ACTIVATIONS: dict[str, Activation] = {
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
_WRITTEN_ACTIVATIONS = {'gelu_tanh': 'gelu_pytorch_tanh'}

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
# Options that change how a model is trained or computed, and that a folder need not hold.
_FREE = frozenset(
  {'dropout', 'attention_dropout', 'stochastic_depth', 'attention', 'dtype', 'remat', 'unroll', 'head_bias'}
)
# Options of which a folder holds no more than whether the factors or tokens are there, or how they are resized.
_BY_PRESENCE = frozenset({'layer_scale', 'mask_token', 'class_token', 'position_resize', 'variant'})

MULTI_LABEL = 'multi_label_classification'  # the `problem_type` of a head trained with sigmoids


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


class TransformersFormat(FolderFormat):
  """A kind of folder that transformers' `save_pretrained` writes."""

  tellable = frozenset({'activation', 'norm_epsilon'})
  # By `model_type`.
  families: ClassVar[Mapping[str, Family]]
  # Names that a head may have.
  heads: ClassVar[tuple[str, ...]] = ('classifier', TWO_HEADS[0])
  # What the head of such a folder reads, and what is pooled without one.
  head_pool: ClassVar[str] = 'token'
  bare_pool: ClassVar[str] = 'token'
  # Sentences about every such folder without a head of the distillation token.
  notes: ClassVar[tuple[str, ...]] = ()

  @abc.abstractmethod
  def options(self, values: JsonObject, head: str | None, files: TensorFiles | None) -> dict[str, Any]:
    """Options of `ViTConfig` beside those that all kinds share; UnknownModelError: we have no such model.

    Args:
      values: of config.json, with the family's defaults.
      head: the name of the head; None: there is none.
      files: the tensors; None where a model is about to be written.
    """

  @abc.abstractmethod
  def values(self, model: ViTConfig) -> dict[str, Any]:
    """The inverse: what config.json says beside what it says of all kinds."""

  def image_size(self, values: JsonObject) -> tuple[int, int]:
    """Height and width of the model's input."""
    return values.sides('image_size', 224)

  def recognises(self, path: pathlib.Path) -> bool:
    values = config_of(path)
    return values is not None and values.raw('model_type') in list(self.families)

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    folder, whole = values.path.parent, values
    family = self.families[values.text('model_type')]
    values = values if family.section is None else values.section(family.section)
    values = values.with_defaults(family.defaults)
    prefix = files.prefix(family.prefix)
    head, num_classes = self._head(files)
    model = self._model(family, values, head, files)
    model = with_told(folder, model, options.told)
    architecture = Architecture(
      model, self.image_size(values), values.integer('num_channels', 3), num_classes
    )
    rules = self._placed(family, architecture, prefix, head, files)
    ignored, notes = _ignored(files, family, prefix, {rule.name for rule in rules if _has(model, rule.path)})
    if not model.distillation_token:
      notes = self.notes + notes
    zeros = frozenset(path for path in (rule.path for rule in rules) if _is_absent(path, family, values))
    if zeros:
      notes += (
        f'{", ".join(sorted(path.split("/", 2)[-1] for path in zeros))} are not there: ours are zeros, which training '
        'would change.',
      )
    default = dict(family.preprocess)
    if family.shorter is not None:
      default['shorter'] = round(max(architecture.image_size) * family.shorter)
    preprocess, about_images = preprocessor_config.read(
      folder, image_size=architecture.image_size, channels=architecture.channels, default=default
    )
    return Layout(
      architecture=architecture,
      rules=rules,
      tokens=self._tokens(family, prefix, model),
      preprocess=preprocess,
      class_names=whole.class_names(num_classes),
      zeros=zeros,
      ignored=ignored,
      derived=self.derived(files, prefix, architecture),
      notes=notes + about_images,
      link='sigmoid' if whole.text('problem_type') == MULTI_LABEL else 'softmax',
    )

  def positioned(self, family: Family, model: ViTConfig) -> int:
    """Tokens before the patches that have a position."""
    return family.tokens.positioned

  def _tokens(self, family: Family, prefix: str, model: ViTConfig) -> Tokens:
    tokens = dataclasses.replace(family.tokens.prefixed(prefix), positioned=self.positioned(family, model))
    if 'learned' not in model.position:
      tokens = dataclasses.replace(tokens, position=None)
    if not model.register_tokens and not model.distillation_token:
      tokens = dataclasses.replace(tokens, registers=None)
    return (
      dataclasses.replace(tokens, registers_path='distillation_token') if model.distillation_token else tokens
    )

  def _head(self, files: TensorFiles) -> tuple[str | None, int]:
    """The name of the head that class tokens go to, and its classes."""
    for head in self.heads:
      shape = files.shapes.get(f'{head}.weight')
      if shape:
        return head, shape[0]
    return None, 0

  def _model(
    self, family: Family, values: JsonObject, head: str | None, files: TensorFiles | None
  ) -> ViTConfig:
    """The config of our model; UserError or UnknownModelError: we have none."""
    options: dict[str, Any] = {'pool': self.bare_pool if head is None else self.head_pool}
    return ViTConfig(**common(values, family) | options | self.options(values, head, files))

  def export(self, pretrained: Pretrained) -> Export:
    """In the first family that holds the model; Unfit, with the reasons of all, where none does."""
    model, reasons = vit_of(pretrained, learned=False), []
    for model_type, family in self.families.items():
      if family.section is None or pretrained.architecture.num_classes:
        try:
          return self._export_as(pretrained, model, model_type, family)
        except Unfit as error:
          reasons.append(str(error))
    raise Unfit(', or '.join(dict.fromkeys(reasons)))

  def _export_as(self, pretrained: Pretrained, model: ViTConfig, model_type: str, family: Family) -> Export:
    head, notes = _written_head(pretrained, model, family)
    architecture, params = pretrained.architecture, pytrees.flatten(pretrained.params)
    if family.square and architecture.image_size[0] != architecture.image_size[1]:
      raise Unfit(f'it has square images and this model {" x ".join(map(str, architecture.image_size))}')
    values = (
      _written_config(pretrained, model, family, params) | self.values(model) | {'model_type': model_type}
    )
    self._check_read_again(family, values, model, head)
    kind = family.model if head is None else f'{family.classifier}'
    if head in TWO_HEADS:
      kind += 'WithTeacher'
    if model.pre_logits_size is not None and family.outside:
      kind += 'WithProjection'
    prefix = '' if kind == family.model else family.prefix
    config = values | {'architectures': [family.stem + kind]}
    if family.section is not None:
      config = {**config, family.section: values}
    config |= written_classes(pretrained, head=head is not None)
    text, about_images = preprocessor_config.write(pretrained.preprocess)
    described = JsonObject(pathlib.Path(), values)
    rules = [
      rule
      for rule in self._placed(family, architecture, prefix, head, None)
      if rule.path in params and not _is_absent(rule.path, family, described)
    ]
    placed = {rule.path for rule in rules}
    absent = {path for path in params if path not in placed and _is_absent(path, family, described)}
    return Export(
      rules=tuple(rules),
      tokens=self._tokens(family, prefix, model),
      config=config,
      texts={preprocessor_config.FILE: text},
      constants={prefix + name: array for name, array in self.constants(model).items()},
      dropped=(HEAD_PATHS if head is None else frozenset()) | absent,
      notes=notes + about_images,
    )

  def rules(self, family: Family, model: ViTConfig, grid: Grid) -> tuple[Rule, ...]:
    """Which tensors the parameters of a model of a grid of patches are, without the prefix."""
    return family.rules

  def derived(self, files: TensorFiles, prefix: str, architecture: Architecture) -> dict[str, Derived]:
    """Tensors that rules read and the files do not have as they are."""
    return {}

  def _placed(
    self, family: Family, architecture: Architecture, prefix: str, head: str | None, files: TensorFiles | None
  ) -> tuple[Rule, ...]:
    """All rules by the names that a folder has; some folders leave out the prefix of some tensors."""
    rules = [*family.outside]
    model = architecture.model
    assert isinstance(model, ViTConfig)
    for rule in self.rules(family, model, model.grid(architecture.image_size)):
      name = rule.name.format(rule.first)
      bare = files is not None and prefix + name not in files.shapes and name in files.shapes
      rules.append(rule if bare else dataclasses.replace(rule, name=prefix + rule.name))
    if head is not None:
      rules += layer('head', head)
      if head == TWO_HEADS[0]:
        rules += layer('distillation_head', TWO_HEADS[1])
    return tuple(rules)

  def constants(self, model: ViTConfig) -> dict[str, np.ndarray]:
    """Tensors that we do not have, by name without prefix."""
    return {}

  def _check_read_again(
    self, family: Family, values: dict[str, Any], model: ViTConfig, head: str | None
  ) -> None:
    """Raises Unfit where what would be written is read as another model."""
    described = JsonObject(pathlib.Path(), values).with_defaults(family.defaults)
    again, model = self._model(family, described, head, None).resolved(), model.resolved()
    for field in dataclasses.fields(model):
      name, ours = field.name, getattr(model, field.name)
      theirs = getattr(again, name)
      if name == 'class_token':
        ours, theirs = model.has_class_token, again.has_class_token
      same = (ours is None) == (theirs is None) if name in _BY_PRESENCE - {'class_token'} else ours == theirs
      untold = (
        name.startswith('pre_logits')
        and head is None
        and (name, model.pre_logits_size) != ('pre_logits', None)
      )
      if not same and name not in _FREE and not untold:
        raise Unfit(f'it has {name} {theirs!r} and this model {ours!r}')


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


def common(values: JsonObject, family: Family) -> dict[str, Any]:
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
    'position_resize': family.position_resize,
    'activation': values.choice('hidden_act', _ACTIVATIONS, 'gelu'),
    'norm_epsilon': values.number('layer_norm_eps', 1e-6),
  }


def _written_config(
  pretrained: Pretrained, model: ViTConfig, family: Family, params: Mapping[str, np.ndarray]
) -> dict[str, Any]:
  """What config.json says of all kinds."""
  sizes, (height, width) = model.sizes, pretrained.architecture.image_size
  return {
    'attention_probs_dropout_prob': model.attention_dropout,
    'dtype': 'float32',
    'hidden_act': _WRITTEN_ACTIVATIONS.get(model.activation, model.activation),
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
    for pattern, flag, default in family.biases
    if flag is not None
  }


def _is_absent(path: str, family: Family, values: JsonObject) -> bool:
  """Whether a folder of that config.json lacks a bias of ours."""
  return any(
    re.fullmatch(pattern, path) and not (flag is not None and values.flag(flag, default))
    for pattern, flag, default in family.biases
  )


def _has(model: ViTConfig, path: str) -> bool:
  """Whether a model may have a parameter: last norms, pre-logits and pools have some only where it has the part."""
  part = path.partition('/')[0]
  if part in ('norm', 'pooled_norm'):
    return model.final_norm == {'norm': 'tokens', 'pooled_norm': 'pooled'}[part]
  if part == 'pre_logits':
    return model.pre_logits_size is not None
  return not part.endswith('_pool') or part == f'{model.pool}_pool'


def _ignored(
  files: TensorFiles, family: Family, prefix: str, read: set[str]
) -> tuple[frozenset[str], tuple[str, ...]]:
  """The tensors that are left out, which are not among those that are `read`, and sentences on them."""
  ignored, notes = set(), []
  for pattern, sentence in family.ignored.items():
    found = {name for name in files.shapes if re.fullmatch(pattern, name.removeprefix(prefix))} - read
    ignored |= found
    notes += [sentence] if found and sentence is not None else []
  return frozenset(ignored), tuple(notes)


def _written_head(
  pretrained: Pretrained, model: ViTConfig, family: Family
) -> tuple[str | None, tuple[str, ...]]:
  """The name of the head that is written, and a sentence where none is although there are classes."""
  num_classes = pretrained.architecture.num_classes
  if not num_classes:
    return None, ()
  if model.pre_logits_size is None and family.classifier is not None:
    return TWO_HEADS[0] if model.distillation_token else 'classifier', ()
  if any(np.asarray(leaf).any() for leaf in pretrained.params['head'].values()):
    if family.classifier is None:
      raise Unfit(f'it has no head, and this model has one of {num_classes} classes')
    raise Unfit(
      f'it has no layer between pooling and head, and this model has one (pre_logits_size '
      f'{model.pre_logits_size})'
    )
  return None, (f'The head of {num_classes} classes, all zeros, is left out.',)
