"""What a folder of PEFT is to hold of a model whose adapters were trained here."""

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax.adapters import lora
from vit_jax.adapters.lora import LORA_A, LORA_B, MAGNITUDE
from vit_jax.foundation import hub, pytrees
from vit_jax.foundation.hub import Address
from vit_jax.models.base import ModelConfig
from vit_jax.pretrained import catalogue, formats, torch_names
from vit_jax.pretrained.base import UNTOLD_OPTIONS, Adapted, Pretrained
from vit_jax.pretrained.huggingface import Unfit
from vit_jax.pretrained.peft_names import KINDS, PREFIX, all_rules, renamed
from vit_jax.pretrained.timm import TimmFormat
from vit_jax.pretrained.torch_names import Rule

# Models of timm that have it (BEiT, EVA) multiply by the weights of `attn.qkv` without calling that module, and so
# without the adapters that PEFT has put around it.
_QUERY_BIAS = 'blocks.{}.attn.q_bias'
_PASSED_BY = (
  'timm computes this model past the modules that PEFT wraps: adapters count behind merge_and_unload().'
)


def on_hub(adapted: Adapted) -> Address | None:
  """The repository of the Hub that is the base of an adapter; None: it is elsewhere, or a file in a repository."""
  base = adapted.base
  found = hub.address_of(base)
  if found is None and not catalogue.is_name(base) and not os.path.isabs(base):
    found = hub.guessed(base)
  return found if found and found.file is None else None


def export(
  pretrained: Pretrained, adapted: Adapted
) -> tuple[dict[str, np.ndarray], dict[str, Any], tuple[str, ...]]:
  """The tensors of a PEFT folder, its config, and notes.

  Raises Unfit where a trained parameter, or an option, has no place in one.
  """
  rules = _rules(pretrained, adapted)
  _check_options(pretrained.architecture.model, formats.architecture(adapted.base).model)
  by_kernel, whole = lora.by_kernel(adapted.params), pytrees.flatten(pretrained.params)
  own = {path for path in pytrees.flatten(adapted.params) if not path.endswith(lora.NAMES)}
  modules = {rule: _module(rule.name) for rule in rules if rule.name.endswith(('.weight', '.bias'))}
  if homeless := sorted((own | by_kernel.keys()) - {rule.path for rule in modules}):
    raise Unfit(f'it has no place for {homeless[0]}')
  saved = {module for rule, module in modules.items() if rule.path in own}
  tensors = torch_names.scatter([rule for rule, module in modules.items() if module in saved], whole)
  tensors = {f'{renamed(_module(name))}.{name.rpartition(".")[2]}': array for name, array in tensors.items()}
  ranks: dict[str, int] = {}
  for module in dict.fromkeys(modules[rule] for rule in modules if rule.path in by_kernel):
    parts = sorted((r for r in modules if r.name == f'{module}.weight'), key=lambda rule: rule.part)
    for block in range(pretrained.architecture.model.num_layers) if '{}' in module else (...,):
      kernels = [whole[part.path][block] for part in parts]
      weights = [
        {
          name: _in_their_order(part, kernel, name, np.asarray(array)[block])
          for name, array in by_kernel.get(part.path, {}).items()
        }
        for part, kernel in zip(parts, kernels, strict=True)
      ]
      kernels = list(map(torch_names.in_their_order, parts, kernels))
      fused = _fused(weights, kernels, conv=parts[0].form == 'conv')
      place = renamed(module if block is ... else module.format(parts[0].first + block))
      tensors |= {f'{place}.{kind}': array for kind, array in fused.items()}
      ranks[_suffix(module)] = len(fused['lora_A.weight'])
  adapter, base, names = adapted.adapter, on_hub(adapted), sorted(map(_suffix, saved))
  is_passed_by = 'attn.qkv' in ranks and any(rule.name == _QUERY_BIAS for rule in rules)
  patterns = {re.escape(suffix): rank for suffix, rank in ranks.items() if rank != adapter.rank}
  return (
    {PREFIX + name: array for name, array in tensors.items()},
    {
      'peft_type': 'LORA',
      'base_model_name_or_path': base.repository if base else adapted.base,
      'revision': base and base.revision,
      'r': adapter.rank,
      'lora_alpha': adapter.alpha,
      'lora_dropout': adapter.dropout,
      'use_dora': adapter.dora,
      'target_modules': list(ranks),
      'modules_to_save': names or None,
      'rank_pattern': patterns,
      'alpha_pattern': {pattern: adapter.scale * rank for pattern, rank in patterns.items()},
      'bias': 'none',
      'inference_mode': True,
    },
    (_PASSED_BY,) * is_passed_by,
  )


def _rules(pretrained: Pretrained, adapted: Adapted) -> tuple[Rule, ...]:
  """Which tensors the model is in a folder of its base's kind; of timm's, by whichever of its names the base has."""
  base = formats.located(adapted.base)
  kind = formats.format_of(base)
  own = {rule.path: rule for rule in kind.rules_of(base)} if isinstance(kind, TimmFormat) else {}
  return tuple(own.get(rule.path, rule) for rule in next(all_rules(pretrained, kind), ()))


def _check_options(model: ModelConfig, base: ModelConfig) -> None:
  """Raises Unfit where a model computes otherwise than its base, which a folder of PEFT is computed as."""
  model, base = model.resolved(), base.resolved().with_learned_positions()
  if type(model) is not type(base):
    return  # a tower of the base, or its network by itself
  told_by_shapes = {'class_token'}
  for name in {field.name for field in dataclasses.fields(model)} - UNTOLD_OPTIONS - told_by_shapes:
    ours, theirs = getattr(model, name), getattr(base, name)
    if ours != theirs:
      raise Unfit(f'its model has {name} {ours!r}, and the base {theirs!r}')


def _in_their_order(rule: Rule, kernel: np.ndarray, name: str, array: np.ndarray) -> np.ndarray:
  """An adapter's B (rank, outputs) or magnitudes (outputs,) of a kernel (D, H, Dh), in the order of the file."""
  if name == LORA_A:
    return array
  heads = array.reshape(*array.shape[:-1], -1, kernel.shape[-1])
  return torch_names.in_their_order(rule, heads).reshape(array.shape)


def _module(tensor: str) -> str:
  return tensor.rpartition('.')[0]


def _suffix(module: str) -> str:
  """What the names of a module end with in all blocks."""
  return renamed(module.format(0)).rpartition('.0.')[2]


def _fused(
  weights: Sequence[lora.Params], kernels: Sequence[np.ndarray], *, conv: bool
) -> dict[str, np.ndarray]:
  """The tensors of the adapter of a module, kind -> array, which fuses these kernels; not all of them have weights."""
  from scipy import linalg  # here: it takes a fifth of a second, and reading does not need it

  a = np.concatenate([own[LORA_A].T for own in weights if own])
  matrices = [kernel.reshape(a.shape[1], -1) for kernel in kernels]
  blocks = zip(weights, matrices, strict=True)
  b = linalg.block_diag(*(own[LORA_B].T if own else np.zeros((matrix.shape[1], 0)) for own, matrix in blocks))
  lengths = [np.linalg.norm(matrix, axis=0) for matrix in matrices]
  magnitude = np.concatenate(
    [own.get(MAGNITUDE, length) for own, length in zip(weights, lengths, strict=True)]
  )
  if conv:
    height, width, channels, _ = kernels[0].shape
    a = a.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)
    b, magnitude = b[:, :, None, None], magnitude[None, :, None, None]
  fused = dict(zip(KINDS, (np.asarray(array, np.float32) for array in (a, b, magnitude)), strict=True))
  return (
    fused if any(MAGNITUDE in own for own in weights) else {kind: fused[kind] for kind in list(fused)[:2]}
  )
