"""What the Vision Transformers of transformers share: `config.json`, tensor names, how images are prepared.

Each kind has a file of its own (transformers_vit.py, transformers_clip.py, …) with its table: a `Family` of names and
defaults, and two functions between its config.json and our options. A kind can hold a model where what it would write
is read as that model again.
"""

import abc
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from vit_jax.foundation import pytrees
from vit_jax.models.base import Architecture, Grid
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import preprocessor_config
from vit_jax.pretrained.base import FREE_OPTIONS, Pretrained, ReadOptions, with_told
from vit_jax.pretrained.huggingface import MULTI_LABEL, FolderFormat, Unfit, config_of, link_of, vit_of
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import (
  HEAD_PATHS,
  Derived,
  Export,
  Layout,
  Rule,
  Tokens,
  layer,
)
from vit_jax.pretrained.transformers_family import TWO_HEADS, Family

# Options of which a folder holds no more than whether the factors or tokens are there, or how they are resized.
_BY_PRESENCE = frozenset({'layer_scale', 'mask_token', 'position_resize', 'variant'})


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
    model = with_told(folder, self._model(family, values, head, files), options.told)
    image_size = self.image_size(values)
    model = dataclasses.replace(model, cut_images=any(side % model.patch_pixels for side in image_size))
    architecture = Architecture(model, image_size, values.integer('num_channels', 3), num_classes)
    rules = self._placed(family, architecture, prefix, head, files)
    ignored, notes = family.left_out(files, prefix, {rule.name for rule in rules if _has(model, rule.path)})
    if not model.distillation_token:
      notes = self.notes + notes
    zeros = frozenset(path for path in (rule.path for rule in rules) if family.lacks(path, values))
    if zeros:
      notes += (
        f'{", ".join(sorted(path.split("/", 2)[-1] for path in zeros))} are not there: ours are zeros, which training '
        'would change.',
      )
    default = dict(family.preprocess)
    if family.shorter is not None:
      default['shorter'] = round(max(architecture.image_size) * family.shorter)
    preprocess, about_images = preprocessor_config.read(
      folder,
      image_size=architecture.image_size,
      channels=architecture.channels,
      default=default,
      processor=family.processor or family.stem,
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
      link=link_of(whole, num_classes),
    )

  def _tokens(self, family: Family, prefix: str, model: ViTConfig) -> Tokens:
    tokens = family.tokens.prefixed(prefix)
    if tokens.positioned < 0:
      tokens = dataclasses.replace(tokens, positioned=model.leading_tokens)
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
    return ViTConfig(**family.common(values) | options | self.options(values, head, files))

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
    values = family.written(pretrained, model, params) | self.values(model) | {'model_type': model_type}
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
      if rule.path in params and not family.lacks(rule.path, described)
    ]
    placed = {rule.path for rule in rules}
    absent = {path for path in params if path not in placed and family.lacks(path, described)}
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
    model: Any = architecture.model
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
      same = (ours is None) == (theirs is None) if name in _BY_PRESENCE else ours == theirs
      # Of a model without a head the tensors tell whether there is a layer behind the pooling.
      untold = (
        head is None and (name == 'pre_logits_size' or model.pre_logits_size is None) and 'pre_logits' in name
      )
      if not same and name not in FREE_OPTIONS and not untold:
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


def _has(model: ViTConfig, path: str) -> bool:
  """Whether a model may have a parameter: last norms, pre-logits and pools have some only where it has the part."""
  part = path.partition('/')[0]
  if part in ('norm', 'pooled_norm'):
    return model.final_norm == {'norm': 'tokens', 'pooled_norm': 'pooled'}[part]
  if part == 'pre_logits':
    return model.pre_logits_size is not None
  return not part.endswith('_pool') or part == f'{model.pool}_pool'


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
