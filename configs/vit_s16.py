"""Pre-training of ViT-S/16 by the published recipe, the data as argument: imagenet21k (by AugReg),
imagenet2012.

python -m vit_jax.main --config=configs/vit_s16.py:imagenet21k --workdir=runs/vit_s16

Published (quoted from AugReg, its light1 augmentation, ImageNet-21k, fine-tuned on ImageNet at 384
px): 83.73 %. Not measured here.

Target: v3-32
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
    'imagenet21k': augreg,  # the only published one of this size
    'augreg': augreg,
    'imagenet2012': imagenet2012,
  }
  return recipes.choose('vit_s16', source, sources)


def augreg() -> Config:
  """'How to train your ViT?' (AugReg, arXiv 2106.10270): the run that its authors recommend."""
  return Config(
    total='300 epochs',
    batch_size=4096,
    model=ViTConfig(variant='S/16', head_bias=-10.0, dtype='bfloat16'),
    data=DataConfig(
      source='tfds:imagenet21k',
      split='full[102400:]',
      num_classes=21843,
      augment='light1',
      prefetch=4,
    ),
    evaluators={'val': ClassificationEvaluatorConfig(split='full[:102400]', every='10000 steps')},
    objective=ClassificationObjective(loss='sigmoid'),
    optimizer=OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.1, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=1e-3, warmup='10000 steps', decay='cosine'),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )


def imagenet2012() -> Config:
  """The paper, table 3."""
  return Config(
    total='300 epochs',
    batch_size=4096,
    model=ViTConfig(variant='S/16', dropout=0.1, dtype='bfloat16'),
    data=DataConfig(source='tfds:imagenet2012', split='train', num_classes=1000, prefetch=4),
    evaluators={'val': ClassificationEvaluatorConfig(split='validation', every='5 epochs')},
    optimizer=OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.3, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=3e-3, warmup='10000 steps', decay='cosine'),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )
