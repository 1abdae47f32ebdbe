"""Folders of PEFT: the adapters that LoRA or DoRA has learned, beside the address of their base.

Tensors have the names of the base's modules in transformers or timm. Where those fuse several of our kernels, as timm's
`qkv`, an adapter of theirs is one of each of ours with the same A, and ours become one whose A has all rows and whose B
is block-diagonal: the same sums.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.adapters import lora
from vit_jax.adapters.lora import LORA_A, LORA_B, MAGNITUDE
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import formats, safetensors_files, torch_names
from vit_jax.pretrained.base import FORMATS, Adapted, Format, Pretrained, ReadOptions
from vit_jax.pretrained.huggingface import FolderFormat, Unfit
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Rule

CONFIG, FILE = 'adapter_config.json', 'adapter_model.safetensors'
_PREFIX = 'base_model.model.'
_Places = dict[
  str, list[tuple[Rule, int | None]]
]  # name of a tensor -> the rules in it, with the number of the block
_Adapters = dict[str, dict[str, str]]  # module -> our name of a tensor -> its name in the file
_KINDS = {'lora_A.weight': LORA_A, 'lora_B.weight': LORA_B, 'lora_magnitude_vector': MAGNITUDE}
# Names of modules in transformers 4, and what version 5 calls them: its files keep the old ones, PEFT's do not. Those
# that are written are new.
_RENAMED = (
  (r'^(vit|deit|beit|ijepa)\.encoder\.layer\.', r'\1.layers.'),
  (r'attention\.attention\.(q|k|v)(uery|ey|alue)$', r'attention.\1_proj'),
  (r'attention\.output\.dense$', 'attention.o_proj'),
  (r'intermediate\.dense$', 'mlp.fc1'),
  (r'\.output\.dense$', '.mlp.fc2'),
)
_KEPT = 'data2vec_vision.'  # the beginning of names that version 5 has left alone


class PeftFormat(Format):
  """A folder with adapter_config.json, read with the base that it names, or that `applied` is given."""

  title = 'a folder of PEFT'

  def recognises(self, path: pathlib.Path) -> bool:
    return (path / CONFIG).is_file()

  def read(self, path: pathlib.Path, options: ReadOptions) -> Pretrained:
    address = JsonObject.read(path / CONFIG).text('base_model_name_or_path')
    return applied(formats.read(address, **vars(options)), path)

  def unfit(self, pretrained: Pretrained) -> str | None:
    if pretrained.adapted is None:
      return 'it holds adapters, and this model has none (config.adapter trains them)'
    try:
      _export(pretrained, pretrained.adapted)
    except Unfit as error:
      return str(error)
    return None

  def write(
    self, pretrained: Pretrained, destination: str | os.PathLike[str], *, naming: str | None = None
  ) -> tuple[str, ...]:
    if (why := self.unfit(pretrained)) is not None or pretrained.adapted is None:
      raise self.refusal(why or '')
    tensors, config = _export(pretrained, pretrained.adapted)
    text = json.dumps(config, indent=2, sort_keys=True) + '\n'
    safetensors_files.write(pathlib.Path(destination), tensors, {CONFIG: text}, FILE)
    return ()


def applied(base: Pretrained, folder: str | os.PathLike[str]) -> Pretrained:
  """A model with the adapters of a PEFT folder merged into it, and the modules that were saved with them.

  Raises UserError for a folder that is not there, is damaged, or is of another model or another method than LoRA.
  """
  folder = formats.located(folder)
  config = JsonObject.read(folder / CONFIG)
  begun = config.raw('init_lora_weights', True)
  if config.text('peft_type') != 'LORA' or begun not in (True, False, 'gaussian'):
    raise UserError(
      f'{folder} holds adapters of {config.text("peft_type")!r} that were begun by {begun!r}, and vit_jax reads LORA '
      'beside an unchanged base; merge it by PEFT (merge_and_unload).'
    )
  with TensorFiles(folder / FILE) as files:
    adapters, others = _named(files)
    for kind in _folder_formats():
      with contextlib.suppress(Unfit):
        places = _places(kind, base)
        if all(f'{module}.weight' in places for module in adapters) and others.keys() <= places.keys():
          return _merged(_with_modules(base, others, places, files), adapters, places, files, config)
  module = next(iter(adapters), next(iter(others), ''))
  raise UserError(
    f'{folder} is of another model than the base: no module there is called {module}, or not all of the others are; '
    'name the base that it was trained on.'
  )


def _folder_formats() -> Iterator[FolderFormat]:
  for name in FORMATS.names():
    kind = FORMATS[name]()
    if isinstance(kind, FolderFormat):
      yield kind


def _rules(kind: FolderFormat, pretrained: Pretrained) -> tuple[Rule, ...]:
  """The tensors of a model in a kind of folder, with those of a head in any case; Unfit where it has no such model."""
  architecture = pretrained.architecture
  if not architecture.num_classes:  # as if it had one class, since an adapter may bring the head
    architecture = dataclasses.replace(architecture, num_classes=1)
    shapes, params = architecture.shapes(), pytrees.flatten(pretrained.params)
    params |= {path: np.zeros(shapes[path].shape) for path in shapes if path.startswith('head/')}
    pretrained = dataclasses.replace(pretrained, architecture=architecture, params=pytrees.unflatten(params))
  return kind.export(pretrained).rules


def _places(kind: FolderFormat, pretrained: Pretrained) -> _Places:
  """Name of a tensor -> the rules of ours that are in it, with the number of the block; raises as `_rules`.

  Names are those of transformers 5, and also without their first part: what a model without a head calls them.
  """
  depth = pretrained.architecture.model.num_layers
  places: _Places = {}
  for rule in _rules(kind, pretrained):
    for block in range(depth) if '{}' in rule.name else (None,):
      name = rule.name if block is None else rule.name.format(rule.first + block)
      places.setdefault(_same(name), []).append((rule, block))
  return {name.partition('.')[2]: found for name, found in places.items()} | places


def _renamed(module: str) -> str:
  """The name of a module as transformers 5 has it."""
  for pattern, name in () if module.startswith(_KEPT) else _RENAMED:
    module = re.sub(pattern, name, module)
  return module


def _same(tensor: str) -> str:
  """One name for all that transformers has for a tensor, that of a module and 'weight' or 'bias'."""
  module, _, kind = tensor.rpartition('.')
  return f'{_renamed(module.removeprefix(_KEPT))}.{kind}'.replace('encoder.layer.', 'layers.')


def _named(files: TensorFiles) -> tuple[_Adapters, dict[str, str]]:
  """The module of each adapter -> the names of its tensors by ours, and likewise the tensors saved whole, by theirs."""
  adapters: _Adapters = {}
  others: dict[str, str] = {}
  for full in files.shapes:
    name = full.removeprefix(_PREFIX)
    kind = next((kind for kind in _KINDS if name.endswith('.' + kind)), None)
    if kind is None:
      others[_same(name)] = full
    else:
      module = _same(name.removesuffix(kind) + 'weight').removesuffix('.weight')
      adapters.setdefault(module, {})[_KINDS[kind]] = full
  return adapters, others


def _with_modules(
  base: Pretrained, others: Mapping[str, str], places: _Places, files: TensorFiles
) -> Pretrained:
  """A model in which the tensors that a folder saves whole are replaced, perhaps the head by one of other classes."""
  architecture = base.architecture
  heads = [files.shapes[full][0] for name, full in others.items() if places[name][0][0].path == 'head/kernel']
  if heads and heads[0] != architecture.num_classes:
    architecture = dataclasses.replace(architecture, num_classes=heads[0])
    base = dataclasses.replace(base, architecture=architecture, class_names=None)
  shapes, params = architecture.shapes(), _copied(base, others, places)
  for name, full in others.items():
    for rule, block in places[name]:
      shape = shapes[rule.path].shape[block is not None :]
      _check_shape(files, full, torch_names.torch_shape(rule, shape))
      value = torch_names.to_ours(rule, files.read(full), shape)
      if block is None:
        params[rule.path] = value
      else:
        params[rule.path][block] = value
  return dataclasses.replace(base, params=pytrees.unflatten(params))


def _merged(
  base: Pretrained, adapters: _Adapters, places: _Places, files: TensorFiles, config: JsonObject
) -> Pretrained:
  """The model with each adapter merged into the kernels that its module fuses."""
  params = _copied(base, (f'{module}.weight' for module in adapters), places)
  for module, names in adapters.items():
    rank = files.shapes[names[LORA_A]][0]
    alpha = _of_module(config, module)
    scale = alpha / (math.sqrt(rank) if config.flag('use_rslora', False) else rank)
    for rule, block in places[f'{module}.weight']:
      kernel = params[rule.path][... if block is None else block]  # a view
      outputs, *inputs = torch_names.torch_shape(rule, kernel.shape)
      ones = (1,) * (len(inputs) - 1)
      shapes = {LORA_A: (rank, *inputs), LORA_B: (outputs, rank, *ones), MAGNITUDE: (outputs,)}
      tensors = {}
      for ours, full in names.items():
        tensors[ours] = files.read(full).squeeze() if ours == MAGNITUDE else files.read(full)
        _check_shape(files, full, shapes[ours], tensors[ours].shape)
      kernel[...] = lora.merged_kernel(kernel, _to_ours(rule, tensors), scale)
  return dataclasses.replace(base, params=pytrees.unflatten(params))


def _of_module(config: JsonObject, module: str) -> float:
  """The alpha of a module, by PEFT's rule: the first pattern that its name ends with."""
  patterns = config.raw('alpha_pattern')
  for pattern, alpha in patterns.items() if isinstance(patterns, dict) else ():
    if re.fullmatch(rf'(.*\.)?({_renamed(pattern)})', module):
      return float(alpha)
  return config.number('lora_alpha', 8)


def _check_shape(
  files: TensorFiles, name: str, expected: Sequence[int], found: Sequence[int] | None = None
) -> None:
  found = files.shapes[name] if found is None else found
  if tuple(found) != tuple(expected):
    raise UserError(
      f'{files.source} has {name} of shape {tuple(found)}, and the base calls for {tuple(expected)}; name the base '
      'that it was trained on.'
    )


def _copied(base: Pretrained, names: Iterable[str], places: _Places) -> dict[str, np.ndarray]:
  """The parameters by path, those that tensors of these names change as copies in float32."""
  changed = {rule.path for name in names for rule, _ in places[name]}
  flat = pytrees.flatten(base.params).items()
  return {path: np.array(array, np.float32) if path in changed else array for path, array in flat}


def _to_ours(rule: Rule, tensors: Mapping[str, np.ndarray]) -> lora.Params:
  """Our weights of an adapter, from its tensors, of which this rule may be a part."""
  which, parts = rule.part
  a = tensors[LORA_A]  # (rank, inputs) or (rank, C, h, w)
  weights = {LORA_A: a.transpose(2, 3, 1, 0).reshape(-1, len(a)) if a.ndim == 4 else a.T}
  for name in tensors.keys() - {LORA_A}:
    size = len(tensors[name]) // parts
    part = tensors[name][which * size : (which + 1) * size]
    weights[name] = part.reshape(size, -1).T if name == LORA_B else part
  return weights


def _export(pretrained: Pretrained, adapted: Adapted) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """The tensors of a PEFT folder and its config; Unfit where a trained parameter has no place in one."""
  kinds = [formats.format_of(formats.located(adapted.base)), *_folder_formats()]
  rules = next(
    (
      kind.export(pretrained).rules
      for kind in kinds
      if isinstance(kind, FolderFormat) and not kind.unfit(pretrained)
    ),
    None,
  )
  if rules is None:
    raise Unfit('its base has no names of tensors in transformers or timm')
  own = {
    path: array for path, array in pytrees.flatten(adapted.params).items() if not path.endswith(lora.NAMES)
  }
  whole, by_kernel = pytrees.flatten(pretrained.params), lora.by_kernel(adapted.params)
  paths = {rule.path for rule in rules if rule.name.endswith(('.weight', '.bias'))}
  if homeless := sorted((own.keys() | by_kernel.keys()) - paths):
    raise Unfit(f'it has no place for {homeless[0]}')
  saved = {rule.name.rpartition('.')[0] for rule in rules if rule.path in own}
  rules_saved = [rule for rule in rules if rule.name.rpartition('.')[0] in saved]
  tensors = torch_names.scatter(rules_saved, whole)
  tensors = {'.'.join((_renamed(n.rpartition('.')[0]), n.rpartition('.')[2])): t for n, t in tensors.items()}
  targets, patterns, adapter = [], {}, adapted.adapter
  for name in dict.fromkeys(rule.name for rule in rules if rule.path in by_kernel):
    parts = sorted((rule for rule in rules if rule.name == name), key=lambda rule: rule.part)
    module, stacked = name.removesuffix('.weight'), '{}' in name
    rank = 0
    for block in range(pretrained.architecture.model.num_layers) if stacked else (None,):
      number = ... if block is None else block
      weights = [
        {n: np.asarray(v)[number] for n, v in by_kernel.get(rule.path, {}).items()} for rule in parts
      ]
      fused = _fused(parts, weights, [whole[rule.path][number] for rule in parts])
      rank = len(fused['lora_A.weight'])
      place = _renamed(module if block is None else module.format(parts[0].first + block))
      tensors |= {f'{place}.{kind}': tensor for kind, tensor in fused.items()}
    targets.append(_suffix(module))
    if rank != adapter.rank:
      patterns[re.escape(targets[-1])] = rank
  config = {
    'peft_type': 'LORA',
    'base_model_name_or_path': adapted.base,
    'r': adapter.rank,
    'lora_alpha': adapter.alpha,
    'lora_dropout': adapter.dropout,
    'use_dora': adapter.dora,
    'target_modules': targets,
    'modules_to_save': sorted({_suffix(module) for module in saved}) or None,
    'rank_pattern': patterns,
    'alpha_pattern': {pattern: adapter.scale * rank for pattern, rank in patterns.items()},
    'bias': 'none',
    'inference_mode': True,
  }
  return {_PREFIX + name: tensor for name, tensor in tensors.items()}, config


def _suffix(module: str) -> str:
  """What the names of a module end with in all blocks."""
  return _renamed(module.format(0)).rpartition('.0.')[2]


def _fused(
  parts: Sequence[Rule], weights: Sequence[lora.Params], kernels: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
  """The tensors of one adapter, kind -> array, for a module that holds these parts, not all of which have weights."""
  distinct: list[np.ndarray] = []  # equal ones, as of a fused adapter that was read, stand once
  columns = []
  for own in weights:
    a = own.get(LORA_A)
    at = next(
      (i for i, other in enumerate(distinct) if a is not None and np.array_equal(a, other)), len(distinct)
    )
    if a is not None and at == len(distinct):
      distinct.append(a)
    columns.append(at)
  rank = distinct[0].shape[-1]
  rows, magnitude = [], []
  for own, at, kernel in zip(weights, columns, kernels, strict=True):
    outputs = next(w[LORA_B] for w in weights if w).shape[-1]
    b = np.zeros((outputs, rank * len(distinct)), np.float32)
    if own:
      b[:, at * rank : (at + 1) * rank] = own[LORA_B].T
    rows.append(b)
    lengths = np.sqrt(np.square(kernel.reshape(-1, outputs), dtype=np.float64).sum(axis=0))
    magnitude.append(own.get(MAGNITUDE, lengths.astype(np.float32)))
  a, b = np.concatenate([a.T for a in distinct]), np.concatenate(rows)
  fused = {'lora_A.weight': a, 'lora_B.weight': b, 'lora_magnitude_vector': np.concatenate(magnitude)}
  if parts[0].form == 'conv':  # (rank, C, h, w), (outputs, rank, 1, 1) and (1, outputs, 1, 1)
    height, width, channels, _ = kernels[0].shape
    a = a.reshape(len(a), height, width, channels).transpose(0, 3, 1, 2)
    magnitudes = fused['lora_magnitude_vector'][None, :, None, None]
    fused = {'lora_A.weight': a, 'lora_B.weight': b[:, :, None, None], 'lora_magnitude_vector': magnitudes}
  if not any(MAGNITUDE in own for own in weights):
    del fused['lora_magnitude_vector']
  return fused
