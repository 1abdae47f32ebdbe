"""Folders of PEFT: the adapters that LoRA or DoRA has learned, beside the address of their base.

Tensors have the names of the base's modules in transformers or timm. Where those fuse several of our kernels, as timm's
`qkv`, an adapter of theirs is one of each of ours with the same A, and ours become one whose A has all rows and whose B
is block-diagonal: the same sums.
"""

import dataclasses
import json
import math
import os
import pathlib
import re
from typing import get_args

import numpy as np

from vit_jax import options as options_lib
from vit_jax.adapters import lora
from vit_jax.adapters.lora import LORA_A, LORA_B, MAGNITUDE
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import hub, pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.hub import Address
from vit_jax.pretrained import formats, safetensors_files, torch_names
from vit_jax.pretrained.adapt import adapt
from vit_jax.pretrained.base import Format, Link, Pretrained, ReadOptions
from vit_jax.pretrained.config import InitConfig
from vit_jax.pretrained.huggingface import Unfit
from vit_jax.pretrained.json_values import JsonObject, is_text
from vit_jax.pretrained.peft_export import export
from vit_jax.pretrained.peft_names import KINDS, PREFIX, all_rules, same
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Rule

CONFIG, FILE = 'adapter_config.json', 'adapter_model.safetensors'
_OWN = 'vit_jax.json'  # what PEFT has no place for


class PeftFormat(Format):
  """A folder with adapter_config.json, read with the base that it names, or that `applied` is given."""

  title = 'a folder of PEFT'

  def recognises(self, path: pathlib.Path) -> bool:
    return (path / CONFIG).is_file()

  def read(self, path: pathlib.Path, options: ReadOptions) -> Pretrained:
    return applied(formats.read(self._base(path), **vars(options)), path)

  def contents(self, path: pathlib.Path) -> str:
    return f'{super().contents(path)} of {formats.contents(self._base(path))}'

  def _base(self, path: pathlib.Path) -> str:
    """Where the base of a folder is; UserError where that is not for a folder to say."""
    config = JsonObject.read(path / CONFIG)
    address, revision = config.text('base_model_name_or_path'), config.raw('revision')
    if is_text(revision) and hub.guessed(address):
      address = str(Address(address, revision))
    # A folder from elsewhere may name an address, or itself.
    if not address or '://' in address or self.recognises(formats.located(address)):
      raise UserError(
        f'{path} names no base that is a model here; write vit_jax.load(BASE, adapter={str(path)!r}).'
      )
    return address

  def unfit(self, pretrained: Pretrained) -> str | None:
    if pretrained.adapted is None:
      return 'it holds adapters, and this model has none (config.adapter trains them)'
    try:
      export(pretrained, pretrained.adapted)
    except Unfit as error:
      return str(error)
    return None

  def write(self, pretrained: Pretrained, destination: str | os.PathLike[str]) -> tuple[str, ...]:
    if pretrained.adapted is None:
      raise self.refusal(self.unfit(pretrained) or '')
    try:
      tensors, config, notes = export(pretrained, pretrained.adapted)
    except Unfit as error:
      raise self.refusal(str(error)) from None
    text = json.dumps(config, indent=2, sort_keys=True) + '\n'
    own = {
      'image_size': pretrained.architecture.image_size,
      'class_names': pretrained.class_names,
      'link': pretrained.link,
      'preprocess': dataclasses.asdict(pretrained.preprocess),
    }
    texts = {CONFIG: text, _OWN: json.dumps(own, indent=2) + '\n'}
    safetensors_files.write(pathlib.Path(destination), tensors, texts, FILE)
    count = sum(array.size for array in tensors.values())
    return f'The folder has {count:,} parameters, to be added to those of {pretrained.adapted.base}.', *notes


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
    wanted = missing = {*(f'{module}.weight' for module in adapters), *others}
    for rules in all_rules(_with_any_head(base)):
      tensors, names = _tensors(rules, base)
      absent = wanted - names.keys()
      missing = min(missing, absent, key=len)
      if not absent:
        for module, own in adapters.items():
          name = names[f'{module}.weight']
          tensors[name] = _merged(
            files, tensors[name], own, _alpha(config, own), config.flag('use_rslora', False)
          )
        tensors |= {names[name]: files.read(full) for name, full in others.items()}
        model = _with(base, rules, tensors, {names[name] for name in wanted}, files.source)
        if (folder / _OWN).is_file():
          return _as_trained(model, folder)
        head = any(rule.path == 'head/kernel' for rule in _within(rules, {names[name] for name in others}))
        return _with_doubt(model, folder) if head and model.class_names else model
  raise UserError(
    f'{folder} is of another model than the base, which has no {min(missing)}; name the base of it.'
  )


def _as_trained(pretrained: Pretrained, folder: pathlib.Path) -> Pretrained:
  """The model at the image size and with the classes that our run had."""
  own = JsonObject.read(folder / _OWN)
  size, names = own.sides('image_size'), own.raw('class_names')
  architecture = dataclasses.replace(pretrained.architecture, image_size=size)
  arrays, _ = adapt(pretrained, architecture, InitConfig(reinitialise=()))
  if not isinstance(names, list) or len(names) != architecture.num_classes or not all(map(is_text, names)):
    names = None
  preprocess = pretrained.preprocess.at(size)
  if 'preprocess' in own:
    preprocess = options_lib.from_dict(Preprocess, own.raw('preprocess'), f'{own.path}: preprocess')
  return dataclasses.replace(
    pretrained,
    architecture=architecture,
    params=pytrees.unflatten(arrays),
    preprocess=preprocess,
    class_names=names and tuple(names),
    link=own.choice('link', {link: link for link in get_args(Link)}, pretrained.link),
  )


def _with_doubt(pretrained: Pretrained, folder: pathlib.Path) -> Pretrained:
  """The model with a sentence on class names that are the base's, whereas its head is that of a folder by PEFT."""
  note = f'The head is that of {folder}, which names no classes: their names are those of the base, and may be wrong.'
  return dataclasses.replace(pretrained, notes=(*pretrained.notes, note))


def _with_any_head(pretrained: Pretrained) -> Pretrained:
  """The model; one without a head as if it had one class, since an adapter may bring the head."""
  if pretrained.architecture.num_classes:
    return pretrained
  architecture = dataclasses.replace(pretrained.architecture, num_classes=1)
  shapes, params = architecture.shapes(), pytrees.flatten(pretrained.params)
  params |= {path: np.zeros(shapes[path].shape, np.float32) for path in shapes if path.startswith('head/')}
  return dataclasses.replace(pretrained, architecture=architecture, params=pytrees.unflatten(params))


def _tensors(rules: tuple[Rule, ...], base: Pretrained) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """A model's tensors in a kind of folder; and by the one name that `same` gives, and without its first part (as a
  model without a head calls it), the names there.
  """
  tensors = torch_names.scatter(rules, pytrees.flatten(_with_any_head(base).params))
  names = {same(name): name for name in tensors}
  return tensors, {short.partition('.')[2]: name for short, name in names.items()} | names


def _named(files: TensorFiles) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
  """Module -> kind of ours -> the name of an adapter's tensor; and the names of those saved whole, by `same`."""
  adapters: dict[str, dict[str, str]] = {}
  others: dict[str, str] = {}
  for full in files.shapes:
    name = full.removeprefix(PREFIX)
    kind = next((kind for kind in KINDS if name.endswith('.' + kind)), None)
    if kind is None:
      others[same(name)] = full
    else:
      module = same(name.removesuffix(kind) + 'weight').removesuffix('.weight')
      adapters.setdefault(module, {})[KINDS[kind]] = full
  return adapters, others


def _alpha(config: JsonObject, own: dict[str, str]) -> float:
  """The alpha of a module, of which these are the tensors: that of the first pattern with which its name ends (PEFT).

  The name is that of the file, for which the patterns were written.
  """
  module = own[LORA_B].removeprefix(PREFIX).removesuffix('.lora_B.weight')
  patterns = config.raw('alpha_pattern')
  for pattern, alpha in patterns.items() if isinstance(patterns, dict) else ():
    if re.match(rf'(.*\.)?({pattern})$', module):
      return float(alpha)
  return config.number('lora_alpha', 8)


def _merged(
  files: TensorFiles, weight: np.ndarray, own: dict[str, str], alpha: float, root: bool
) -> np.ndarray:
  """A weight of PyTorch's, outputs first, with an adapter; `root`: the rank's square root divides (rsLoRA)."""
  read = {kind: files.read(name) for kind, name in own.items()}
  outputs, rank = len(weight), len(read.get(LORA_A, ()))
  sizes = {LORA_A: (rank, weight[0].size), LORA_B: (outputs, rank), MAGNITUDE: (outputs,)}
  for kind, array in read.items():
    if array.size != math.prod(sizes[kind]):
      raise UserError(
        f'{files.source} has {own[kind]} of shape {array.shape}, which the base has no place for.'
      )
  a, b, *magnitude = (read[kind].reshape(sizes[kind]) for kind in lora.NAMES if kind in read)
  merged = weight.reshape(outputs, -1) + alpha / (math.sqrt(rank) if root else rank) * (b @ a)
  if magnitude:
    merged *= (magnitude[0] / np.linalg.norm(merged, axis=1))[:, None]
  return merged.reshape(weight.shape)


def _with(
  base: Pretrained,
  rules: tuple[Rule, ...],
  tensors: dict[str, np.ndarray],
  changed: set[str],
  source: pathlib.Path,
) -> Pretrained:
  """A model with the parameters that are in the `changed` ones of its tensors, perhaps with a head of other classes."""
  architecture, touched = base.architecture, _within(rules, changed)
  heads = [len(tensors[rule.name]) for rule in touched if rule.path == 'head/kernel']
  if heads and heads[0] != architecture.num_classes:
    # One output has a sigmoid, as in transformers' pipeline.
    link: Link = 'sigmoid' if heads[0] == 1 else 'softmax' if architecture.num_classes == 1 else base.link
    architecture = dataclasses.replace(architecture, num_classes=heads[0])
    base = dataclasses.replace(base, architecture=architecture, class_names=None, link=link)
  shapes = architecture.shapes()
  for name, shape in torch_names.expected(touched, shapes).items():
    if tensors[name].shape != tuple(shape):
      raise UserError(
        f'{source} has {name} of shape {tensors[name].shape}, and the base calls for {tuple(shape)}.'
      )
  params = pytrees.flatten(base.params) | torch_names.gather(touched, shapes, tensors.__getitem__)
  return dataclasses.replace(base, params=pytrees.unflatten(params))


def _within(rules: tuple[Rule, ...], names: set[str]) -> list[Rule]:
  """The rules whose tensors are among `names`."""
  patterns = {rule: re.escape(rule.name).replace(r'\{\}', r'\d+') for rule in rules}
  return [rule for rule in rules if any(re.fullmatch(patterns[rule], name) for name in names)]
