"""The names of modules and tensors in folders of PEFT, and in those of its models."""

import re
from collections.abc import Iterator

from vit_jax.adapters.lora import LORA_A, LORA_B, MAGNITUDE
from vit_jax.pretrained import timm_names
from vit_jax.pretrained.base import FORMATS, Format, Pretrained
from vit_jax.pretrained.huggingface import FolderFormat
from vit_jax.pretrained.timm import TimmFormat
from vit_jax.pretrained.torch_names import Rule

PREFIX = 'base_model.model.'
KINDS = {'lora_A.weight': LORA_A, 'lora_B.weight': LORA_B, 'lora_magnitude_vector': MAGNITUDE}
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


def all_rules(pretrained: Pretrained, first: Format | None = None) -> Iterator[tuple[Rule, ...]]:
  """Which tensors a model is in each kind of folder that can hold it, that of `first` before others."""
  for kind in (first, *(FORMATS[name]() for name in FORMATS.names())):
    if isinstance(kind, FolderFormat) and kind.unfit(pretrained) is None:
      yield (rules := kind.export(pretrained).rules)
      if isinstance(kind, TimmFormat):
        yield timm_names.split(rules)


def renamed(module: str) -> str:
  """The name of a module as transformers 5 has it."""
  for pattern, name in () if module.startswith(_KEPT) else _RENAMED:
    module = re.sub(pattern, name, module)
  return module


def same(tensor: str) -> str:
  """One name for all that transformers has for a tensor, that of a module and 'weight' or 'bias'."""
  module, _, kind = tensor.rpartition('.')
  return f'{renamed(module.removeprefix(_KEPT))}.{kind}'.replace('encoder.layer.', 'layers.')
