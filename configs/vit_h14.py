"""Pre-training of ViT-H/14 by the published recipe, the data as argument: jft, imagenet2012.

python -m vit_jax.main --config=configs/vit_h14.py:jft --workdir=runs/vit_h14

Published (quoted from the paper, table 2, after fine-tuning on ImageNet): 88.55 % from JFT-300M, 2.5k
TPUv3-core-days. Not measured here.

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


def get_config(source: str = 'jft'):
  sources = {
    'jft': jft,
    'imagenet2012': imagenet2012,
  }
  return recipes.choose('vit_h14', source, sources)


def jft() -> Config:
  """The paper, table 3. JFT-300M is Google's."""
  return Config(
    total='14 epochs',
    batch_size=4096,
    model=ViTConfig(variant='H/14', head_bias=-10.0, dtype='bfloat16'),
    # 375 million labels on 300 million images (arXiv 1707.02968); a list of more than 32 is an error.
    data=DataConfig(source='tfds:jft_300m', split='train', num_classes=18291, max_labels=32, prefetch=4),
    objective=ClassificationObjective(loss='sigmoid'),
    optimizer=OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.1, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=3e-4, warmup='10000 steps', decay='linear'),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )


def imagenet2012() -> Config:
  """The paper, table 3."""
  return Config(
    total='300 epochs',
    batch_size=4096,
    model=ViTConfig(variant='H/14', dropout=0.1, dtype='bfloat16'),
    data=DataConfig(source='tfds:imagenet2012', split='train', num_classes=1000, prefetch=4),
    evaluators={'val': ClassificationEvaluatorConfig(split='validation', every='5 epochs')},
    optimizer=OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.3, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=3e-3, warmup='10000 steps', decay='cosine'),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )
