"""Pre-training of ViT-L/16 by the published recipe, the data as argument: imagenet21k, jft, imagenet2012,
or augreg (ImageNet-21k by AugReg's recipe, with its strong1 augmentation).

python -m vit_jax.main --config=configs/vit_l16.py:imagenet21k --workdir=runs/vit_l16

Published (quoted from the paper, table 2, after fine-tuning on ImageNet): 87.76 % from JFT-300M, 85.30 % from
ImageNet-21k; 0.68k and 0.23k TPUv3-core-days. AugReg, at 384 px: 85.59 %. Not measured here.

Target: v3-128
"""

from vit_jax import recipes
from vit_jax.config import (
  CheckpointConfig,
  ClassificationEvaluatorConfig,
  ClassificationObjective,
  Config,
  DataConfig,
  OptimizerConfig,
  ScheduleConfig,
  ViTConfig,
)


def get_config(source: str = 'imagenet21k'):
  sources = {
    'imagenet21k': imagenet21k,
    'augreg': augreg,
    'jft': jft,
    'imagenet2012': imagenet2012,
  }
  return recipes.choose('vit_l16', source, sources)


def imagenet21k() -> Config:
  """The paper, table 3. Loss, head bias, pre-logits layer and end value are as its authors describe them."""
  return Config(
    total='90 epochs',
    batch_size=4096,
    model=ViTConfig(
      variant='L/16',
      dropout=0.1,
      pre_logits_size=1024,
      head_bias=-10.0,
      dtype='bfloat16',
    ),
    # The 21,843-class release; its authors held the first 102,400 examples out.
    data=DataConfig(source='tfds:imagenet21k', split='full[102400:]', num_classes=21843, prefetch=4),
    evaluators={'val': ClassificationEvaluatorConfig(split='full[:102400]', every='10000 steps')},
    objective=ClassificationObjective(loss='sigmoid'),
    optimizer=OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.03, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=1e-3, warmup='10000 steps', decay='linear', end_value=1e-5),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )


def augreg() -> Config:
  """'How to train your ViT?' (AugReg, arXiv 2106.10270): the run that its authors recommend."""
  return Config(
    total='300 epochs',
    batch_size=4096,
    model=ViTConfig(variant='L/16', head_bias=-10.0, dtype='bfloat16'),
    data=DataConfig(
      source='tfds:imagenet21k',
      split='full[102400:]',
      num_classes=21843,
      augment='strong1',
      prefetch=4,
    ),
    evaluators={'val': ClassificationEvaluatorConfig(split='full[:102400]', every='10000 steps')},
    objective=ClassificationObjective(loss='sigmoid'),
    optimizer=OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.1, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=1e-3, warmup='10000 steps', decay='cosine'),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )


def jft() -> Config:
  """The paper, table 3 (7 epochs too: --config.total='7 epochs'). JFT-300M is Google's."""
  return Config(
    total='14 epochs',
    batch_size=4096,
    model=ViTConfig(variant='L/16', head_bias=-10.0, dtype='bfloat16'),
    # 375 million labels on 300 million images (arXiv 1707.02968); a list of more than 32 is an error.
    data=DataConfig(source='tfds:jft_300m', split='train', num_classes=18291, max_labels=32, prefetch=4),
    objective=ClassificationObjective(loss='sigmoid'),
    optimizer=OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.1, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=4e-4, warmup='10000 steps', decay='linear'),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )


def imagenet2012() -> Config:
  """The paper, table 3."""
  return Config(
    total='300 epochs',
    batch_size=4096,
    model=ViTConfig(variant='L/16', dropout=0.1, dtype='bfloat16'),
    data=DataConfig(source='tfds:imagenet2012', split='train', num_classes=1000, prefetch=4),
    evaluators={'val': ClassificationEvaluatorConfig(split='validation', every='5 epochs')},
    optimizer=OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.3, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=3e-3, warmup='10000 steps', decay='cosine'),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )
