"""The paper's training recipes (arXiv 2010.11929, tables 3 and 4) as configs.

The files in `configs/` name one each; a number that is not the paper's says where it is from.
"""

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from vit_jax.config import (
  CheckpointConfig,
  Config,
  DataConfig,
  Evaluator,
  FewShot,
  InitConfig,
  Loss,
  Model,
  OptimizerConfig,
  ScheduleConfig,
  to_config_dict,
)
from vit_jax.data.sources import vtab as vtab_tasks
from vit_jax.errors import UserError

_IMAGENET = DataConfig(source='tfds:imagenet2012', split='train', num_classes=1000)
# The 21,843-class release; its authors held the first 102,400 examples out.
_IMAGENET21K = DataConfig(source='tfds:imagenet21k', split='full[102400:]', num_classes=21843)
_IMAGENET21K_EVALUATORS = {'val': Evaluator(split='full[:102400]', every='10000 steps')}
# 375 million labels on 300 million images (arXiv 1707.02968); a list of more than these is an error.
_JFT = DataConfig(source='tfds:jft_300m', split='train', num_classes=18291, max_labels=32)

# (source, split) -> images, as published, so that a run can be planned where the data is not.
EXAMPLES = {
  (_IMAGENET.source, _IMAGENET.split): 1_281_167,
  (_IMAGENET21K.source, _IMAGENET21K.split): 14_197_122 - 102_400,
  (_JFT.source, _JFT.split): 303_000_000,
}

# Table 3, JFT-300M: variant -> (epochs, rate).
_JFT_ROWS = {
  'B/16': (7, 8e-4),
  'B/32': (7, 8e-4),
  'L/32': (7, 6e-4),
  'L/16': (14, 4e-4),
  'H/14': (14, 3e-4),
  'R50x1': (7, 1e-3),
  'R50x2': (7, 1e-3),
  'R101x1': (7, 8e-4),
  'R152x1': (7, 6e-4),
  'R152x2': (7, 6e-4),
  'R50+B/16': (7, 8e-4),
  'R50+L/32': (7, 2e-4),
}
# Table 3, ImageNet-21k: variant -> epochs.
_IMAGENET21K_ROWS = {'B/16': 90, 'B/32': 90, 'L/16': 90, 'L/32': 90}
# 'How to train your ViT?' (AugReg, arXiv 2106.10270), ImageNet-21k: variant -> augmentation, of the files
# that its authors recommend.
_AUGREG_ROWS = {
  'Ti/16': 'none',
  'S/32': 'none',
  'S/16': 'light1',
  'B/32': 'light1',
  'B/16': 'medium1',
  'L/16': 'strong1',
}


def pretraining(variant: str, source: str) -> Config:
  """Table 3: Adam, batch 4096, 224 px, 10,000 steps of warmup, gradient clipped at norm 1.

  Args:
    variant: 'Ti/16' … 'H/14'.
    source: 'imagenet21k', 'jft' or 'imagenet2012'; or 'augreg', which is ImageNet-21k by AugReg's recipe (the
      only one of Ti and S on it).

  Raises:
    UserError: no such source, or no published recipe of this variant on it.
  """
  builders = {
    'imagenet21k': _imagenet21k,
    'augreg': _augreg,
    'jft': _jft,
    'imagenet2012': _imagenet2012,
  }
  if source not in builders:
    raise UserError(f'There is no pre-training on {source!r}; choose one of {", ".join(builders)}.')
  return builders[source](variant)


def _pretraining(
  variant: str, data: DataConfig, epochs: int, rate: float, decay: str, weight_decay: float, end: float = 0.0
) -> Config:
  return Config(
    total=f'{epochs} epochs',
    batch_size=4096,
    model=Model(variant=variant, dtype='bfloat16', remat='block'),
    data=dataclasses.replace(data, threads=16, prefetch=4),
    optimizer=OptimizerConfig(weight_decay=weight_decay, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=rate, warmup='10000 steps', decay=decay, end_value=end),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )


def _imagenet2012(variant: str) -> Config:
  config = _pretraining(variant, _IMAGENET, 300, 3e-3, 'cosine', 0.3)
  return dataclasses.replace(
    config,
    model=dataclasses.replace(config.model, dropout=0.1),
    evaluators={'val': Evaluator(split='validation', every='5 epochs')},
  )


def _imagenet21k(variant: str) -> Config:
  if variant in _AUGREG_ROWS and variant not in _IMAGENET21K_ROWS:
    return _augreg(variant)
  _require(variant, _IMAGENET21K_ROWS, 'The paper', 'ImageNet-21k')
  # Sigmoid loss, head bias, representation layer and end value as its authors describe them.
  config = _pretraining(variant, _IMAGENET21K, _IMAGENET21K_ROWS[variant], 1e-3, 'linear', 0.03, end=1e-5)
  width = {'B': 768, 'L': 1024}[variant[0]]
  model = dataclasses.replace(config.model, dropout=0.1, representation_size=width)
  return _with_sigmoid(dataclasses.replace(config, model=model, evaluators=_IMAGENET21K_EVALUATORS))


def _augreg(variant: str) -> Config:
  _require(variant, _AUGREG_ROWS, 'AugReg', 'ImageNet-21k')
  data = dataclasses.replace(_IMAGENET21K, augment=_AUGREG_ROWS[variant])
  config = _pretraining(variant, data, 300, 1e-3, 'cosine', 0.1)
  return _with_sigmoid(dataclasses.replace(config, evaluators=_IMAGENET21K_EVALUATORS))


def _with_sigmoid(config: Config) -> Config:
  return dataclasses.replace(
    config, model=dataclasses.replace(config.model, head_bias=-10.0), loss=Loss(name='sigmoid')
  )


def _jft(variant: str) -> Config:
  _require(variant, _JFT_ROWS, 'The paper', 'JFT-300M')
  epochs, rate = _JFT_ROWS[variant]
  config = _pretraining(variant, _JFT, epochs, rate, 'linear', 0.1)
  if '/' not in variant:  # a ResNet, as 'Big Transfer' has it
    model = dataclasses.replace(config.model, pool='gap', norm_epsilon=1e-5)
    config = dataclasses.replace(config, model=model)
  return _with_sigmoid(config)


def _require(variant: str, rows: Iterable[str], authors: str, data: str) -> None:
  if variant not in rows:
    raise UserError(
      f'{authors} did not train {variant} on {data}, but {", ".join(rows)}; choose another source.'
    )


def masked_patches(source: str) -> Config:
  """Appendix B.1.2: B/16, a million steps, batch 4096, Adam at 2e-4, cosine; or a small model on CIFAR-10.

  Args:
    source: 'jft', 'imagenet21k', 'imagenet2012' or 'cifar10'.

  Raises:
    UserError: no such source.
  """
  sources = {'jft': _JFT, 'imagenet21k': _IMAGENET21K, 'imagenet2012': _IMAGENET}
  if source == 'cifar10':
    config = dataclasses.replace(cifar10(), checkpoint=CheckpointConfig())
    probe = FewShot(pool='gap', seeds=2)
    evaluators = {'probe': Evaluator(type='fewshot', split='test', every='10%', fewshot=probe)}
  elif source in sources:
    data = dataclasses.replace(sources[source], num_classes=None)
    # The paper gives no weight decay. The class token is of use when the model is fine-tuned.
    config = _pretraining('B/16', data, 1, 2e-4, 'cosine', 0.0)
    config = dataclasses.replace(config, total='1000000 steps')
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, class_token=True))
    evaluators = {}
  else:
    raise UserError(f'There is no {source!r} here; choose one of {", ".join(sources)} or cifar10.')
  model = dataclasses.replace(config.model, pool='none', mask_token=True)
  return dataclasses.replace(config, model=model, loss=Loss(name='masked_patches'), evaluators=evaluators)


# Table 4: data set -> (splits to train on and to test, steps, one of the rates swept).
_FINETUNING_ROWS = {
  'imagenet2012': ('train', 'validation', 20_000, 0.03),
  'cifar10': ('train', 'test', 10_000, 0.01),
  'cifar100': ('train', 'test', 10_000, 0.01),
  'oxford_iiit_pet': ('train', 'test', 500, 0.01),
  'oxford_flowers102': ('train', 'test', 500, 0.01),
}


# The released checkpoints to begin from, pre-trained on ImageNet-21k: the paper's, else AugReg's.
_PRETRAINED = {
  'B/16': 'imagenet21k/ViT-B_16',
  'B/32': 'imagenet21k/ViT-B_32',
  'L/16': 'imagenet21k/ViT-L_16',
  'L/32': 'imagenet21k/ViT-L_32',
  'H/14': 'imagenet21k/ViT-H_14',
  'R50+B/16': 'imagenet21k/R50+ViT-B_16',
  'R26+B/32': 'imagenet21k/R26+ViT-B_32',
  'R50+L/32': 'imagenet21k/R50+ViT-L_32',
  'Ti/16': 'augreg/Ti_16',
  'S/16': 'augreg/S_16',
  'S/32': 'augreg/S_32',
  'R+Ti/16': 'augreg/R_Ti_16',
  'R26+S/32': 'augreg/R26_S_32',
}


def finetuning(model: str, data: str) -> Config:
  """Table 4: SGD with momentum, batch 512, 384 px, cosine, 500 steps of warmup, clipped at norm 1.

  Args:
    model: 'B/16' or, as on a command line, 'b16': its released checkpoint; or any checkpoint (a path, an
      address, a short name), whose architecture is then read from it.
    data: a row of the table, such as 'cifar10', or any source: 'folder:/path', 'tfds:NAME'. Those
      get VTAB's 2,500 steps.
  """
  split, test_split, steps, rate = _FINETUNING_ROWS.get(data, ('train', 'val', 2_500, 0.01))
  if data not in _FINETUNING_ROWS and ':' not in data:
    near = difflib.get_close_matches(data, _FINETUNING_ROWS, n=1) or ['tfds:' + data]
    raise UserError(
      f'{data!r} is not one of {", ".join(_FINETUNING_ROWS)}, folder:/path or tfds:NAME; '
      f'did you mean {near[0]}?'
    )
  source = data if ':' in data else f'tfds:{data}'
  evaluator = Evaluator(split=test_split, every='500 steps')
  return _finetuning(model, DataConfig(source=source, split=split, crop='inception'), evaluator, steps, rate)


def vtab(model: str, task: str, *, choosing: bool = False) -> Config:
  """Table 4's last row: 2,500 steps at rate 0.01 on the 1,000 images of a task of VTAB-1k.

  Args:
    model: as for `finetuning`.
    task: one of `data.vtab.TASKS`, such as 'clevr_count'.
    choosing: train on 800 images and evaluate on the other 200, instead of on the test split.

  Raises:
    UserError: no such model or task.
  """
  definition = vtab_tasks.task_of(task)
  split, test_split = ('train800', 'val200') if choosing else ('train800val200', 'test')
  data = DataConfig(
    source=definition.source,
    split=split,
    crop='random' if definition.crop else 'resize',
    flip=definition.flip,
  )
  # The test splits have up to 74,000 images: once, at the end.
  return _finetuning(model, data, Evaluator(split=test_split, every='2500 steps'), 2_500, 0.01)


def _finetuning(model: str, data: DataConfig, evaluator: Evaluator, steps: int, rate: float) -> Config:
  """Table 4's recipe on any data; a random crop is BiT's, of 384 out of 448 pixels."""
  model, init, pixels = _pretrained(model)
  side = 384 // pixels * pixels  # 378 for patches of 14
  resize = side * 448 // 384 if data.crop == 'random' else None
  return Config(
    total=f'{steps} steps',
    batch_size=512,
    model=model,
    init=init,
    data=dataclasses.replace(data, image_size=(side, side), resize=resize),
    evaluators={'test': evaluator},
    optimizer=OptimizerConfig(name='sgd', momentum_dtype='bfloat16', clip_norm=1.0),
    # 500 steps of warmup, but no more than a fifth of the short runs.
    schedule=ScheduleConfig(learning_rate=rate, warmup=f'{min(500, steps // 5)} steps', decay='cosine'),
    checkpoint=CheckpointConfig(every='500 steps'),
  )


def _pretrained(model: str) -> tuple[Model, InitConfig, int]:
  """The model, where its parameters are from, and the pixels along a side of what becomes a token."""
  variant = variant_of(model)
  if variant in _PRETRAINED:
    return Model(variant=variant), InitConfig(checkpoint=_PRETRAINED[variant]), int(variant.split('/')[1])
  if '/' not in model and '.' not in model and not os.path.exists(model):
    raise UserError(
      f'No released checkpoint of {model!r} is known; choose one of {", ".join(_PRETRAINED)}, or name a '
      f'checkpoint.'
    )
  from vit_jax.models.variants import has_class_token, resolve
  from vit_jax.pretrained import formats  # starts JAX

  found = formats.model_config(model)
  if found.pool == 'none':  # of masked patches: an image gets logits from here on
    found = dataclasses.replace(found, pool='token' if has_class_token(found) else 'gap', mask_token=False)
  return found, InitConfig(checkpoint=model), resolve(found).pixels


def variant_of(name: str) -> str:
  """'b16' -> 'B/16', 'r50+l32' -> 'R50+L/32', 'r50x1' -> 'R50x1': a variant as a file's name has it."""
  if re.fullmatch(r'r\d+x\d', name, re.IGNORECASE):
    return name.capitalize()
  match = re.fullmatch(r'(r\d*\+|mixer-)?(ti|[sblhg])(\d+)', name, re.IGNORECASE)
  if not match:
    return name
  stem, letters, patch = match.groups('')
  size = letters if letters == 'g' else letters.capitalize()
  return f'{stem.capitalize()}{size}/{patch}'


def cifar10() -> Config:
  """CIFAR-10 from scratch with a small ViT: not the paper's, but what one GPU or a laptop can pay."""
  return Config(
    total='40 epochs',
    batch_size=128,
    model=Model(variant='custom', patch=4, width=128, mlp_dim=384, depth=6, heads=4, pool='gap'),
    data=DataConfig(source='tfds:cifar10', image_size=(32, 32), crop='random', padding=4),
    evaluators={'test': Evaluator(split='test')},
    loss=Loss(label_smoothing=0.1),
    optimizer=OptimizerConfig(weight_decay=0.05, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=1.5e-3, warmup='10%', decay='cosine'),
    checkpoint=CheckpointConfig(best='test/accuracy'),
  )


# `cifar10` for one core and a minute or two: a sixth of the FLOPs, and one epoch.
_SMALL = {
  'total': '1 epochs',
  'model.width': 64,
  'model.mlp_dim': 192,
  'model.depth': 4,
}


def ablation(
  name: str, arguments: str, options: Mapping[str, Mapping[str, Any]]
) -> ml_collections.ConfigDict:
  """`cifar10` with what a file of configs/ablations/ compares.

  Args:
    name: of the file, for errors.
    arguments: of the command line, such as 'rotary,gap,small'; 'small' is for every comparison: a smaller
      model and one epoch.
    options: argument -> what it changes, by the options' dotted names.

  Returns:
    The config, for a `get_config`.

  Raises:
    UserError: an argument that the comparison does not have.
  """
  config = to_config_dict(cifar10())
  options = {'small': _SMALL, **options}
  # 'small' first, so that a comparison's own sizes win, in whatever order they are given.
  for argument in sorted(filter(None, arguments.split(',')), key='small'.__ne__):
    if argument not in options:
      raise UserError(f'configs/ablations/{name}.py has no {argument!r}; choose from {", ".join(options)}.')
    config.update_from_flattened_dict(options[argument])
  return config
