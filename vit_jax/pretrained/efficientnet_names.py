"""The parameters of an EfficientNet as PyTorch's libraries name them: what transformers and timm share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.pretrained.safetensors_files import STEP_COUNT
from vit_jax.pretrained.torch_names import HEAD_PATHS, Rule, expected, layer

_LEAVES = {
  'kernel': 'weight',
  'scale': 'weight',
  'bias': 'bias',
  'mean': 'running_mean',
  'var': 'running_var',
}


class StageNames(NamedTuple):
  """How the tensors of a stage are called."""

  block: str  # what a block's names begin with, {} being its number
  first: int  # number of the stage's first block
  layers: Mapping[str, str]  # our layer in a block -> theirs


def rules(
  paths: Iterable[str], around: Mapping[str, str], stage_names: Callable[[int], StageNames], *, head: bool
) -> tuple[Rule, ...]:
  """Which tensor each parameter is in.

  Args:
    paths: of the parameters of an EfficientNet.
    around: our layer outside of the stages -> theirs.
    stage_names: of the number of a stage, from 0.
    head: whether they have one.
  """
  result = []
  for path in paths:
    if path in HEAD_PATHS:
      continue
    *where, name, leaf = path.split('/')
    form = 'conv' if leaf == 'kernel' else 'same'
    if not where:
      result.append(Rule(path, f'{around[name]}.{_LEAVES[leaf]}', form))
      continue
    stage, part = where
    names = stage_names(int(stage.removeprefix('stage')) - 1)
    theirs = f'{names.block}.{names.layers[name]}.{_LEAVES[leaf]}'
    if part == 'first':
      result.append(Rule(path, theirs.format(names.first), form))
    else:
      result.append(Rule(path, theirs, form, first=names.first + 1))
  return (*result, *(layer('head', around['head']) if head else ()))


def step_counts(rules: Sequence[Rule], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The tensors in which PyTorch's batch norms count their steps, at zero: we do not count them."""
  mean = _LEAVES['mean']
  names = expected(rules, params)
  return {
    name.removesuffix(mean) + STEP_COUNT: np.zeros((), np.int64)
    for name in names
    if name.endswith(f'.{mean}')
  }
