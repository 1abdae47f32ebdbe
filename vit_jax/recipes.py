"""Recipes that configs and `vit_jax.transfer` share: the paper's fine-tuning, and a small CIFAR-10 model.

The paper's pre-training (table 3) stands, number by number, in configs/vit.py.
"""

import dataclasses
import difflib
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from vit_jax.config import (
  AdapterConfig,
  CheckpointConfig,
  ClassificationEvaluatorConfig,
  ClassificationObjective,
  Config,
  DataConfig,
  FewShotEvaluatorConfig,
  InitConfig,
  OptimizerConfig,
  ScheduleConfig,
  ViTConfig,
  from_config_dict,
  to_config_dict,
)
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import MODELS, ModelConfig
from vit_jax.models.capabilities import PretrainingOptions


def choose(
  file: str, argument: str, recipes: Mapping[str, Callable[[], Config]]
) -> ml_collections.ConfigDict:
  """The recipe that the argument of the config file `file`, below configs/, names; UserError where there is none."""
  if argument not in recipes:
    raise UserError(f'configs/{file} has no recipe {argument!r}; choose one of {", ".join(recipes)}.')
  return to_config_dict(recipes[argument]())


# Table 4: data set -> (split to test on, steps, one of the rates swept).
_FINETUNING_ROWS = {
  'imagenet2012': ('validation', 20_000, 0.03),
  'cifar10': ('test', 10_000, 0.01),
  'cifar100': ('test', 10_000, 0.01),
  'oxford_iiit_pet': ('test', 500, 0.01),
  'oxford_flowers102': ('test', 500, 0.01),
}


# The words with which the argument of configs/finetune.py may end.
_RECIPES = ('head', 'all', 'slides', 'text', 'paper', 'lora', 'dora', 'bitfit')
_LAST = re.compile(r'last([1-9]\d*)')  # of them too: the last so many blocks
# Of `fitted`: images seen in training all layers, at least three epochs and at most twenty; pixels of a side at most.
_FITTED_IMAGES, _FITTED_SIDE = 100_000, 224
_SMALL_SIDE = 128  # pixels
_HELD_OUT = ('val', 'validation', 'test')  # the first that there is is evaluated on


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


def chosen_finetuning(argument: str) -> Config:
  """The fine-tuning that configs/finetune.py is asked for by 'MODEL,DATA' or 'MODEL,DATA,RECIPE'.

  Raises UserError as `finetuning` and `fitted`.
  """
  from vit_jax.data.sources.base import SOURCES  # here: other recipes do not need it

  model, _, data = argument.partition(',')
  if not data:
    if model.partition(':')[0] in SOURCES.names():
      raise UserError(
        f'--config=finetune:{model} names no checkpoint; write it before the data: finetune:b16,{model}.'
      )
    raise UserError(
      f'--config=finetune:{model} names no data; write it behind a comma: finetune:{model},folder:/path/to/images.'
    )
  data, recipe = _divided(data)
  if recipe == 'paper' or (not recipe and not _is_source(data)):
    return finetuning(model, data)
  return fitted(model, source_of(data), recipe or 'head')


def _is_folder_of_images(path: str) -> bool:
  """Whether a path is that of a folder which TFDS did not prepare."""
  from vit_jax.data.sources.tfds_files import INFO

  folder = pathlib.Path(path).expanduser()
  return folder.is_dir() and not (folder / INFO).exists()


def _divided(data: str) -> tuple[str, Any]:
  """'folder:/images,all' -> ('folder:/images', 'all'), without a recipe ''; UserError where the word is no recipe."""
  name, comma, word = data.rpartition(',')
  if comma and (word in _RECIPES or _LAST.fullmatch(word)):
    return name, word
  if comma and '/' not in word and not os.path.exists(os.path.expanduser(data.partition(':')[2])):
    raise UserError(
      f'{word!r} is no recipe of fine-tuning; choose one of {", ".join(_RECIPES)}, last4, and set options by flags '
      f"behind it, such as --config.total='4 epochs'."
    )
  return data, ''


def finetuning(model: str, data: str) -> Config:
  """Table 4: SGD with momentum, batch 512, 384 px, cosine, 500 steps of warmup, clipped at norm 1.

  The model is 'B/16' or, as on a command line, 'b16', for its released checkpoint; or any checkpoint (a path, an
  address, a short name), whose architecture is then read from it. The data is a row of the table, such as 'cifar10', or
  any source, 'folder:/path' or 'tfds:NAME', which gets VTAB's 2,500 steps. Raises UserError where one of them is not
  there, or has no split to evaluate on.
  """
  if data not in _FINETUNING_ROWS and not _is_source(data):
    kind = 'folder' if _is_folder_of_images(data) else 'tfds'
    near = difflib.get_close_matches(data, _FINETUNING_ROWS, n=1) or [f'{kind}:{data}']
    raise UserError(
      f'{data!r} is not one of {", ".join(_FINETUNING_ROWS)}, folder:/path or tfds:NAME; '
      f'did you mean {near[0]}?'
    )
  split, fold = _held_out_of(data)
  _, steps, rate = _FINETUNING_ROWS.get(data) or (split, 2_500, 0.01)
  evaluator = ClassificationEvaluatorConfig(split=split, every='500 steps')
  images = DataConfig(source=source_of(data), crop='inception', fold=fold)
  return _finetuning(model, images, evaluator, steps, rate)


def source_of(data: str) -> str:
  """'cifar10' -> 'tfds:cifar10'; what is no row of the paper's table is read as `sources.spec_of` does."""
  from vit_jax.data import sources

  return f'tfds:{data}' if data in _FINETUNING_ROWS else sources.spec_of(data)


def _is_source(data: str) -> bool:
  """Whether a name says by itself which source it is of, rather than to be a row of the paper's table."""
  from vit_jax.data.sources.base import SOURCES

  return ':' in data or data in SOURCES.names()


def held_out(source: str) -> str:
  """The split of a source (as config.data.source) that a run is evaluated on.

  Of the data sets of table 4 it is known. A folder that is not here is taken to have 'val', so that its recipe can
  be looked at. Raises UserError where another source is not here, or has none of `_HELD_OUT`.
  """
  from vit_jax.data.sources import splits

  name = source.removeprefix('tfds:')
  if name in _FINETUNING_ROWS:
    return _FINETUNING_ROWS[name][0]
  folder = pathlib.Path(source.removeprefix('folder:')).expanduser()
  if source.startswith('folder:') and not folder.is_dir():
    return 'val'
  return splits.first_of(_HELD_OUT, source)


def _held_out_of(source: str) -> tuple[str, str | None]:
  """The split that a run on a source is evaluated on, and `data.fold`: a tenth of a source that has 'train' alone.

  Where the source names its own part of 'train', the rest is for an option to name: no fold makes it smaller.
  """
  from vit_jax.data import sources
  from vit_jax.data.sources import splits

  try:
    return held_out(source), None
  except UserError:
    if tuple(splits.of(source)) != ('train',):
      raise
  return 'val', None if sources.parse(source, '')[2] else '1/10'


def fitted(model: str, data: str, recipe: str) -> Config:
  """A fine-tuning of any size: its batch follows from the number of images, and with 'all' its length too.

  Images are as large as the checkpoint's own, 224 px at most.

  The head begins as a logistic regression of the frozen features, which is most of what some hundred images
  can teach. With 'head' it is the result: the features are computed once, and no step follows. 'all' trains every
  layer, gently. 'slides' does so as tutorials do (AdamW with a rate of 2e-4, 4 epochs of batches of 16 images), but
  a warmup of two epochs and layer-wise decay (BEiT, arXiv 2106.08254) keep what the checkpoint and the head know.
  'text' is 'all' from the head that a CLIP or a SigLIP makes of the names of the classes. As 'all' are 'lora' and
  'dora', which train adapters of queries and values, 'bitfit', which trains biases (arXiv 2106.10199), and 'last4',
  which trains the last four blocks; each with the head.

  The model is as for `finetuning`, and the data any source that is here; UserError where one of them is not.
  """
  from vit_jax.data import sources

  network, init, own_side = _pretrained(model, of_texts=recipe == 'text')
  split, fold = _held_out_of(data)
  examples = len(sources.open_source(data, 'train', data=DataConfig(fold=fold)))
  # A power of two, an eighth of the images or less.
  batch_size = 2 ** min(max((examples // 8).bit_length() - 1, 4), 9)
  epochs = min(max(_FITTED_IMAGES // max(examples, 1), 3), 20)
  side = min(own_side, _FITTED_SIDE) // network.patch_pixels * network.patch_pixels
  config = Config(
    total=f'{epochs} epochs',
    batch_size=batch_size,
    model=network,
    init=dataclasses.replace(init, head='text' if recipe == 'text' else 'probe'),
    data=DataConfig(source=data, image_size=(side, side), crop='inception', area=(0.25, 1.0), fold=fold),
    evaluators={'val': ClassificationEvaluatorConfig(split=split, every='20%')},
    optimizer=OptimizerConfig(name='adam', weight_decay=0.05, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=2e-5, warmup='10%', decay='cosine'),
    checkpoint=CheckpointConfig(every='20%', best='val/accuracy', keep=1),
  )
  if recipe == 'head':
    # The rest is for whoever gives it a length: --config.total='4 epochs' trains the head on other crops in each.
    frozen = dataclasses.replace(config.optimizer, freeze=('^(?!head/)',))
    return dataclasses.replace(config, total='0 steps', optimizer=frozen)
  if recipe in ('lora', 'dora'):
    config = dataclasses.replace(config, adapter=AdapterConfig(rank=16, dora=recipe == 'dora'))
  elif recipe == 'bitfit':
    freeze = (r'^(?!.*bias$|head/|distillation_head/)',)
    config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, freeze=freeze))
  elif last := _LAST.fullmatch(recipe):
    first = network.num_layers - int(last[1])
    if first < 1:
      raise UserError(f'{recipe!r} is of {network.num_layers} blocks; choose fewer, or all.')
    optimizer = dataclasses.replace(config.optimizer, freeze_blocks=first)
    return dataclasses.replace(config, optimizer=optimizer)
  if recipe in ('lora', 'dora', 'bitfit'):  # few parameters take larger steps
    return dataclasses.replace(config, schedule=dataclasses.replace(config.schedule, learning_rate=5e-4))
  if recipe == 'slides':
    return dataclasses.replace(
      config,
      total='4 epochs',
      batch_size=min(batch_size, 16),
      evaluators={'val': ClassificationEvaluatorConfig(split=split)},
      optimizer=dataclasses.replace(config.optimizer, layer_decay=0.65),
      schedule=ScheduleConfig(learning_rate=2e-4, warmup='50%', decay='cosine'),
    )
  return config


def vtab(model: str, task: str, *, choosing: bool = False) -> Config:
  """Table 4's last row: 2,500 steps at rate 0.01 on the 1,000 images of a task of VTAB-1k, such as 'clevr_count'.

  With `choosing` it trains on 800 of them and is evaluated on the other 200, instead of on the test split. The model is
  as for `finetuning`; UserError for a model or task that there is not.
  """
  from vit_jax.data.sources.vtab import task_of

  definition = task_of(task)
  split, test_split = ('train800', 'val200') if choosing else ('train800val200', 'test')
  data = DataConfig(
    source=definition.source,
    split=split,
    crop='random' if definition.crop else 'resize',
    flip=definition.flip,
  )
  # The test splits have up to 74,000 images: once, at the end.
  # They are squashed, whatever the checkpoint's own evaluation cuts off: some are about what is at the edge.
  evaluator = ClassificationEvaluatorConfig(split=test_split, every='2500 steps', crop='resize')
  return _finetuning(model, data, evaluator, 2_500, 0.01)


def _finetuning(
  model: str, data: DataConfig, evaluator: ClassificationEvaluatorConfig, steps: int, rate: float
) -> Config:
  """Table 4's recipe on any data.

  A checkpoint of small images keeps their size: 384 pixels are thousands of patches of two or four.
  """
  network, init, own_side = _pretrained(model)
  wanted = own_side if own_side < _SMALL_SIDE else 384
  side = wanted // network.patch_pixels * network.patch_pixels  # 378 for patches of 14
  resize = random_crop_resize(side) if data.crop == 'random' else None
  return Config(
    total=f'{steps} steps',
    batch_size=512,
    model=network,
    init=init,
    data=dataclasses.replace(data, image_size=(side, side), resize=resize),
    evaluators={'test': evaluator},
    optimizer=OptimizerConfig(name='sgd', momentum_dtype='bfloat16', clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=rate, warmup=finetuning_warmup(steps), decay='cosine'),
    checkpoint=CheckpointConfig(every='500 steps'),
  )


def finetuning_warmup(steps: int) -> str:
  """The warmup of a fine-tuning of so many steps: 500 of them, but no more than a fifth of a short run."""
  return f'{min(500, steps // 5)} steps'


def random_crop_resize(side: int) -> int:
  """Pixels that images are resized to before a random crop of `side` pixels; BiT's are 448 for 384."""
  return side * 448 // 384


def _pretrained(model: str, *, of_texts: bool = False) -> tuple[ModelConfig, InitConfig, int]:
  """The network, where its parameters are from, and the height of the images that it was trained with.

  `of_texts`: the network is for a head of texts, for which it keeps the layer that ends in their space.
  """
  variant = variant_of(model)
  if variant in _PRETRAINED:
    return ViTConfig(variant=variant), InitConfig(checkpoint=_PRETRAINED[variant]), 224
  if '/' not in model and '.' not in model and not os.path.exists(model):
    raise UserError(
      f'No released checkpoint of {model!r} is known; choose one of {", ".join(_PRETRAINED)}, or name a '
      f'checkpoint.'
    )
  from vit_jax.pretrained import formats

  architecture = formats.architecture(model)
  network = architecture.model
  if of_texts:
    network = network.with_cosine_head()
  elif isinstance(network, PretrainingOptions):
    network = network.for_classification()
  # Fixed positions would be computed anew, and not resized, where images have another size.
  return network.with_learned_positions(), InitConfig(checkpoint=model), architecture.image_size[0]


def variant_of(name: str) -> str:
  """'b16' -> 'B/16', 'r50+l32' -> 'R50+L/32', 'r50x1' -> 'R50x1': the variant that a file's name writes."""
  plain: dict[str, str] = {}
  for kind in MODELS.names():
    for variant in MODELS[kind].variants:
      plain[variant.replace('/', '')] = variant
  if name in plain:
    return plain[name]
  caseless = {short.lower(): variant for short, variant in reversed(plain.items())}
  return caseless.get(name.lower(), name)


def neighbours(every: str, **options: Any) -> FewShotEvaluatorConfig:
  """The vote of the 20 nearest of all training images, which says what a pre-training has learned."""
  return FewShotEvaluatorConfig(
    probe='weighted_knn', grid=(20,), shots=(0,), validation=0, seeds=1, every=every, **options
  )


def cifar10() -> Config:
  """CIFAR-10 from scratch with a small ViT: not the paper's, but what one GPU or a laptop can pay."""
  return Config(
    total='40 epochs',
    batch_size=128,
    model=ViTConfig(variant='custom', patch=4, width=128, mlp_dim=384, depth=6, heads=4, pool='gap'),
    data=DataConfig(source='tfds:cifar10', image_size=(32, 32), crop='random', padding=4, cache=True),
    evaluators={'test': ClassificationEvaluatorConfig(split='test')},
    objective=ClassificationObjective(label_smoothing=0.1),
    optimizer=OptimizerConfig(weight_decay=0.05, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=1.5e-3, warmup='10%', decay='cosine'),
    checkpoint=CheckpointConfig(best='test/accuracy'),
  )


def changed_cifar10(
  file: str, arguments: str, changes: Mapping[str, Mapping[str, Any]]
) -> ml_collections.ConfigDict:
  """`cifar10` with the changes that the arguments of a file of configs/ablations/ name, such as 'rotary,gap,small'.

  The changes are argument -> options, by their dotted names; 'model' replaces the whole model. Every file has 'small',
  a smaller model and one epoch; UserError for an argument that it does not have.
  """
  words = [word for word in arguments.split(',') if word]
  for word in words:
    if word not in ('small', *changes):
      known = ', '.join(['small', *changes])
      raise UserError(f'configs/{file} has no {word!r}; choose from {known}.')
  config = cifar10()
  if 'small' in words:
    # A sixth of the FLOPs: for one core and a minute or two.
    model = dataclasses.replace(config.model, width=64, mlp_dim=192, depth=4)
    config = dataclasses.replace(config, total='1 epochs', model=model)
  # After 'small', so that a comparison's own sizes win, in whatever order they are given.
  for word in words:
    options = dict(changes.get(word, {}))
    if 'model' in options:
      config = dataclasses.replace(config, model=options.pop('model'))
    values = to_config_dict(config)
    values.update_from_flattened_dict(options)
    config = from_config_dict(values)
  return to_config_dict(config)
