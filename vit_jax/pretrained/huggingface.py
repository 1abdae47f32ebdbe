"""Folders of Hugging Face: ViT, DeiT, DINOv2 and BiT as transformers saves them, and timm's `vit_*`.

PyTorch is not needed; safetensors is (the extra 'huggingface').
"""

import dataclasses
import json
import os
import pathlib
import types
from typing import Any

import numpy as np

from vit_jax import pytrees
from vit_jax.errors import UserError
from vit_jax.models.variants import resolve
from vit_jax.pretrained import timm, transformers, transformers_bit
from vit_jax.pretrained.base import Portable
from vit_jax.pretrained.safetensors_files import TensorFiles, read_json
from vit_jax.pretrained.safetensors_files import write as write_files
from vit_jax.pretrained.torch_names import Export, Layout, check, expected, gather, scatter

KINDS = (*transformers.KINDS, 'timm')
_CONFIG = 'config.json'


def read(
  source: str | os.PathLike,
  *,
  heads: int | None = None,
  gelu: str | None = None,
  norm_epsilon: float | None = None,
  fold_layer_scale: bool = False,
) -> Portable:
  """A folder of transformers' or timm's, or a bare .safetensors file with timm's names.

  Args:
    source: the folder, or the file; a file beside a config.json is read as that folder.
    heads: None: as config.json says; timm's says it only of what it saved itself, and otherwise the
      model's name and width tell.
    gelu: 'tanh' or 'erf'; None: as config.json says, or timm's usual 'erf'.
    norm_epsilon: of every LayerNorm; None: as config.json says, or timm's usual 1e-6.
    fold_layer_scale: multiply LayerScale's factors into the kernels before them, which gives a model
      without LayerScale and the same logits.

  Raises:
    UserError: damaged files, a kind of model that we do not have, or tensors that are not its.
  """
  source = pathlib.Path(source)
  with TensorFiles(source) as files:
    path = (source if source.is_dir() else source.parent) / _CONFIG
    values = read_json(path) if path.exists() else None
    if values is None and source.is_dir():
      raise UserError(
        f'{source} has no {_CONFIG}; get it from where the tensors are from, or name the .safetensors file '
        "itself if its tensors have timm's names."
      )
    told = {'heads': heads, 'gelu': gelu, 'norm_epsilon': norm_epsilon}
    told = {name: value for name, value in told.items() if value is not None}
    layout = _reader(values).layout(files, path.parent, values, told)
    portable = _portable(files, layout)
  return fold(portable) if fold_layer_scale else portable


def write(portable: Portable, folder: str | os.PathLike, kind: str | None = None) -> tuple[str, ...]:
  """Writes a folder that `from_pretrained` of transformers, or timm, loads.

  Args:
    portable: the model.
    folder: new or empty.
    kind: 'vit', 'deit', 'dinov2' (with registers where the model has them) or 'timm'; None: the first
      of them that the model is one of.

  Returns:
    Sentences about what the folder does not hold as it was.

  Raises:
    UserError: the model is not of that kind, or the folder is not empty.
  """
  if resolve(portable.model).kind == 'resnet':
    raise UserError(
      'A ResNet can be read from a folder of Hugging Face, but not written to one; choose the .npz format or '
      'a run.'
    )
  kind = _kind(portable) if kind is None else kind
  if kind not in KINDS:
    raise UserError(f'There is no kind {kind!r} of Hugging Face folder; choose one of {", ".join(KINDS)}.')
  if portable.model.position != 'learned':
    raise UserError(
      f"Hugging Face's Vision Transformers have learned positions, this model {portable.model.position!r}; "
      'save it as a run.'
    )
  if portable.class_names is not None and len(portable.class_names) != portable.num_classes:
    raise UserError(
      f'{len(portable.class_names)} class names do not fit a head of {portable.num_classes} classes; '
      'give one for each.'
    )
  export = timm.export(portable) if kind == 'timm' else transformers.export(portable, kind)
  texts = {_CONFIG: json.dumps(export.config, indent=2, sort_keys=True) + '\n'} | export.texts
  write_files(pathlib.Path(folder), _tensors(portable, export, kind), texts)
  return export.notes


def fold(portable: Portable) -> Portable:
  """The same function without LayerScale: its factors are multiplied into the kernels before them."""
  if portable.model.layer_scale is None:
    return portable
  flat = pytrees.flatten(portable.params)
  for scale, layer in (('attention_scale', 'attention/out'), ('mlp_scale', 'mlp/dense_out')):
    factor = flat.pop(f'blocks/{scale}')
    for name in (f'blocks/{layer}/kernel', f'blocks/{layer}/bias'):
      axes = tuple(range(1, flat[name].ndim - 1))
      flat[name] = flat[name] * np.expand_dims(factor, axes)
  model = dataclasses.replace(portable.model, layer_scale=None)
  notes = (*portable.notes, "LayerScale's factors are multiplied into the kernels before them.")
  return dataclasses.replace(portable, model=model, params=pytrees.unflatten(flat), notes=notes)


def _reader(values: dict[str, Any] | None) -> types.ModuleType:
  """The module that knows the kind of folder that a config.json describes."""
  if values is None or 'model_type' not in values:
    return timm
  return transformers_bit if values['model_type'] == transformers_bit.MODEL_TYPE else transformers


def _portable(files: TensorFiles, layout: Layout) -> Portable:
  _, shapes = pytrees.shapes(layout.model, layout.image_size, layout.channels, layout.num_classes)
  depth = resolve(layout.model).depth
  rules = [rule for rule in layout.rules if rule.path not in layout.zeros]
  wanted, tokens = expected(rules, shapes, depth), layout.tokens
  check(files, wanted | tokens.expected(shapes) if tokens else wanted, layout.ignored)
  params = gather(rules, shapes, depth, files.read) | (tokens.gather(files.read) if tokens else {})
  absent = layout.zeros if layout.num_classes else layout.zeros | {'head/kernel', 'head/bias'}
  params |= {path: np.zeros(shapes[path].shape, np.float32) for path in absent}
  unfilled = shapes.keys() - params.keys()
  if unfilled:
    raise AssertionError(f'no rule fills {sorted(unfilled)}')
  notes = layout.notes
  if not layout.num_classes:
    notes += (f'{files.source} has no head: it is for features, or for fine-tuning (num_classes=…).',)
  elif not params['head/kernel'].any() and not params['head/bias'].any():
    notes += (f'The head of {files.source} is all zeros: every class gets the same logit.',)
  if files.dtypes != {'F32'}:
    notes += (f'{files.source} is stored in {", ".join(sorted(files.dtypes))}, and read into float32.',)
  return Portable(
    model=layout.model,
    image_size=layout.image_size,
    channels=layout.channels,
    num_classes=layout.num_classes,
    params=pytrees.unflatten(params),
    preprocess=layout.preprocess,
    class_names=layout.class_names,
    position_resize=layout.position_resize,
    notes=notes,
  )


def _tensors(portable: Portable, export: Export, kind: str) -> dict[str, np.ndarray]:
  """Their tensors by name, every parameter of ours in one of them."""
  flat = pytrees.flatten(portable.params)
  placed = {rule.path for rule in export.rules} | export.tokens.paths()
  homeless = sorted(flat.keys() - placed - export.dropped)
  if homeless:
    raise UserError(
      f'Kind {kind!r} of Hugging Face folder has no place for {homeless[0]}; choose another kind '
      f'({", ".join(KINDS)}) or save it as a run.'
    )
  depth = resolve(portable.model).depth
  return scatter(export.rules, flat, depth) | export.tokens.scatter(flat) | export.constants


def _kind(portable: Portable) -> str:
  model = portable.model
  if model.pool == 'token_gap' or (model.layer_scale is not None and not portable.num_classes):
    return 'dinov2'
  if model.pool == 'token' and model.layer_scale is None and model.register_tokens <= 1:
    return 'deit' if model.register_tokens else 'vit'
  return 'timm'
