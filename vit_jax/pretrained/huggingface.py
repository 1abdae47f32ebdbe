"""What the formats of Hugging Face share: safetensors files, and a config.json that says what they are of.

PyTorch is not needed.
"""

import abc
import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.files import digest
from vit_jax.models.base import Architecture
from vit_jax.models.vit_config import ViTConfig
from vit_jax.pretrained import safetensors_files
from vit_jax.pretrained.base import Format, Link, Pretrained, ReadOptions, UnknownModelError
from vit_jax.pretrained.json_values import JsonObject, is_text
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import (
  Export,
  Layout,
  Rule,
  check,
  check_depth,
  expected,
  gather,
  scatter,
)

CONFIG = 'config.json'
MULTI_LABEL = 'multi_label_classification'  # the `problem_type` of a head trained with sigmoids
# About a folder with a distillation token and no head for it.
NO_DISTILLATION_HEAD = (
  'The distillation token, which has no head, is read as a register token: all tokens attend to it.'
)


# Options of a Vision Transformer that no tensor tells.
_UNTOLD = (
  *('heads', 'pool', 'pool_heads', 'block', 'position', 'rotary_grid', 'position_resize'),
  *('activation', 'norm_epsilon'),
)


class Unfit(Exception):
  """A kind of folder cannot hold a model; the text is a clause that says why."""


def config_of(path: pathlib.Path) -> JsonObject | None:
  """The config.json of a folder, or beside a .safetensors file, or None; UserError where it is damaged."""
  if not path.is_dir() and path.suffix != '.safetensors':
    return None
  file = (path if path.is_dir() else path.parent) / CONFIG
  if not file.exists():
    return None
  values = JsonObject.read(file)
  # transformers' TimmWrapper: a model of timm's, whose config it keeps.
  return values.without('model_type') if values.raw('model_type') == 'timm_wrapper' else values


def taken(files: TensorFiles, layout: Layout, told: Collection[str]) -> str:
  """A sentence on what tensors without a config.json do not tell, and how it is taken; `told`: what the caller says."""
  model: Any = layout.architecture.model
  without = set(told) | (set() if 'rotary' in model.position else {'rotary_grid'})
  without |= set() if model.pool.startswith('map') else {'pool_heads'}
  said = [f'{name} {getattr(model, name)!r}' for name in _UNTOLD if name not in without]
  return (
    f'{files.source} has no config.json beside it: {", ".join(said)} and {layout.preprocess} are taken, as most models '
    "of such tensors have them (vit_jax.load(…, heads=12, activation='gelu_tanh', norm_epsilon=1e-5) takes others)."
  )


def link_of(values: JsonObject, num_classes: int) -> Link:
  """What turns a head's logits into probabilities; UnknownModelError for one of regression."""
  kind = values.text('problem_type')
  if kind == 'regression':
    raise UnknownModelError('its head is one of regression, and vit_jax has heads of classes')
  return 'sigmoid' if kind == MULTI_LABEL or num_classes == 1 else 'softmax'  # as in transformers' pipeline


def described(values: JsonObject | None) -> str:
  """What the model of a config.json is called, to follow 'holds'; None: of tensors alone."""
  if values is None:
    return (
      'tensors without a config.json beside them (of those alone, docs/checkpoints.md says which are read)'
    )
  if 'architecture' in values:
    return f"timm's {values.text('architecture')}"
  if 'model_type' not in values:
    return 'a model that its config.json does not name (it has neither model_type nor architecture)'
  classes = values.raw('architectures')
  name = classes[0] if isinstance(classes, list) and classes and is_text(classes[0]) else 'a model'
  return f"transformers' {name[:100]} of type {values.text('model_type')!r}"


class FolderFormat(Format):
  """A folder with a config.json and safetensors files; naming one of those is naming the folder."""

  group = 'hf'

  @abc.abstractmethod
  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    """What a folder holds, and where; `values` are those of its config.json, or none of a file alone.

    Raises:
      UserError: config.json is damaged, or describes a model that we do not have.
      UnknownModelError: the tensors do.
    """

  def export(self, pretrained: Pretrained) -> Export:
    """What a folder of this kind is to hold; Unfit where the model is of another."""
    raise Unfit('it can be read, but not written')

  def read(self, path: pathlib.Path, options: ReadOptions) -> Pretrained:
    with self._opened(path, options, sums=True) as (files, layout):
      return _read(files, layout)

  def contents(self, path: pathlib.Path) -> str:
    """Of a file, also of what `read` takes beside it: configs, and the others of several files."""
    if path.is_dir():
      return super().contents(path)
    return digest(sorted({*path.parent.glob('*config.json'), *safetensors_files.paths_of(path)[0]}))

  def peek(self, path: pathlib.Path, options: ReadOptions) -> tuple[Architecture, Preprocess]:
    with self._opened(path, options) as (_, layout):
      return layout.architecture, layout.preprocess

  def rules_of(self, path: pathlib.Path) -> tuple[Rule, ...]:
    """Which tensors of a folder our parameters are; errors as of `read`."""
    with self._opened(path, ReadOptions()) as (_, layout):
      return layout.rules

  def unfit(self, pretrained: Pretrained) -> str | None:
    try:
      self._plan(pretrained)
    except Unfit as error:
      return str(error)
    return None

  def write(self, pretrained: Pretrained, destination: str | os.PathLike[str]) -> tuple[str, ...]:
    """Writes a new folder, or an empty one, that `from_pretrained` of transformers, or timm, loads."""
    names, num_classes = pretrained.class_names, pretrained.architecture.num_classes
    if names is not None and len(names) != num_classes:
      raise UserError(
        f'{len(names)} class names do not fit a head of {num_classes} classes; give one for each.'
      )
    try:
      export = self._plan(pretrained)
    except Unfit as error:
      raise self.refusal(str(error)) from None
    flat = pytrees.flatten(pretrained.params) | export.params
    tensors = scatter(export.rules, flat) | export.constants
    if export.tokens is not None:
      tensors |= export.tokens.scatter(flat)
    for name, of_blocks in export.merged.items():
      depth = pretrained.architecture.model.num_layers
      tensors[name] = np.stack([tensors.pop(of_blocks.format(block)) for block in range(depth)], axis=1)
    texts = {CONFIG: json.dumps(export.config, indent=2, sort_keys=True) + '\n'} | export.texts
    safetensors_files.write(pathlib.Path(destination), tensors, texts)
    return export.notes

  def what(self, path: pathlib.Path) -> str:
    """What a checkpoint is, to follow 'holds'."""
    return described(config_of(path))

  def file_of(self, path: pathlib.Path) -> pathlib.Path:
    """What to read of a folder: itself, or the file of it that this kind has."""
    return path

  @contextlib.contextmanager
  def _opened(
    self, path: pathlib.Path, options: ReadOptions, *, sums: bool = False
  ) -> Iterator[tuple[TensorFiles, Layout]]:
    """A folder's tensors, compared with their checksums if `sums`, and what they are; UserError: no model of ours."""
    with TensorFiles(self.file_of(path)) as files:
      try:
        if sums:
          files.check_sums()
        yield files, self._layout_of(files, path, options)
      except UnknownModelError as error:
        raise UserError(
          f'{path} holds {self.what(path)}, of a kind that vit_jax does not have: {error}.'
        ) from error

  def _layout_of(self, files: TensorFiles, path: pathlib.Path, options: ReadOptions) -> Layout:
    values = config_of(path)
    layout = self.layout(files, values or JsonObject(files.source, {}), options)
    check_depth(files, layout.architecture)
    notes = files.notes
    if values is not None and 'auto_map' in values:
      notes += (
        f'{values.path.parent} brings code of its own (auto_map in config.json), which is not run: the model is '
        f'computed as {described(values)} is without it, and may be another.',
      )
    return dataclasses.replace(layout, notes=layout.notes + notes)

  def _plan(self, pretrained: Pretrained) -> Export:
    """The export; Unfit where a parameter has no place in it."""
    export = self.export(pretrained)
    placed = {rule.path for rule in export.rules}
    if export.tokens is not None:
      placed |= export.tokens.paths()
    homeless = sorted(pytrees.flatten(pretrained.params).keys() - placed - export.dropped)
    if homeless:
      raise Unfit(f'it has no place for {homeless[0]}')
    return export


def vit_of(pretrained: Pretrained, *, learned: bool = True) -> ViTConfig:
  """The config of a Vision Transformer, of one with `learned` positions alone; Unfit: it is another model."""
  model = pretrained.architecture.model
  if type(model) is not ViTConfig:
    raise Unfit(f'it is for Vision Transformers, and this is {model.title}')
  if learned and model.position != 'learned':
    raise Unfit(f'it has learned positions, and this model {model.position!r}')
  return model


def _read(files: TensorFiles, layout: Layout) -> Pretrained:
  """The parameters of a folder, every tensor of which is accounted for."""
  architecture = layout.architecture
  try:
    shapes = architecture.shapes()
  except UserError as error:
    raise UnknownModelError(str(error).rstrip('.')) from error
  rules = [rule for rule in layout.rules if rule.path in shapes and rule.path not in layout.zeros]
  wanted = expected(rules, shapes)
  if layout.tokens is not None:
    wanted |= layout.tokens.expected(shapes)
  derived = layout.derived
  found = {
    name: files.shapes[name] for name in files.shapes if not any(name in d.sources for d in derived.values())
  }
  check(found | {name: made.shape for name, made in derived.items()}, wanted, layout.ignored)

  def read(name: str) -> np.ndarray:
    made = derived.get(name)
    return files.read(name) if made is None else made.compute(*map(files.read, made.sources))

  params = gather(rules, shapes, read)
  if layout.tokens is not None:
    params |= layout.tokens.gather(read)
  absent = set(layout.zeros) & shapes.keys()
  if not architecture.num_classes:
    absent |= ({'head/kernel', 'head/bias'} & shapes.keys()) - params.keys()
  params |= {path: np.zeros(shapes[path].shape, np.float32) for path in absent}
  unfilled = shapes.keys() - params.keys()
  if unfilled:
    raise AssertionError(f'no rule fills {sorted(unfilled)}')
  notes = layout.notes
  if architecture.num_classes and not params['head/kernel'].any() and not params['head/bias'].any():
    notes += (f'The head of {files.source} is all zeros: every class gets the same logit.',)
  if files.dtypes != {'F32'}:
    notes += (f'{files.source} is stored in {", ".join(sorted(files.dtypes))}, and read into float32.',)
  unflat = pytrees.unflatten(params)
  return Pretrained(architecture, unflat, layout.preprocess, layout.class_names, notes, layout.link)
