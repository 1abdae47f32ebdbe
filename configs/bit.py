"""Pre-training of BiT's ResNets by the published recipe, the data as argument: jft (BiT-L), imagenet21k (BiT-M).

python -m vit_jax.main --config=configs/bit.py:jft --workdir=runs/bit_l
python -m vit_jax.main --config=configs/bit.py:imagenet21k --config.model.variant=R101x3 --workdir=runs/bit_m

Published (quoted from the ViT paper, table 2, after fine-tuning on ImageNet): BiT-L, R152x4, 87.54 % from JFT-300M;
9.9k TPUv3-core-days. Not measured here.

Target: v3-512
"""

from vit_jax import recipes
from vit_jax.config import (
  CheckpointConfig,
  ClassificationEvaluatorConfig,
  ClassificationObjective,
  Config,
  DataConfig,
  OptimizerConfig,
  ResNetConfig,
  ScheduleConfig,
)


def get_config(source: str = 'imagenet21k'):
  return recipes.choose('bit', source, {'imagenet21k': imagenet21k, 'jft': jft})


def imagenet21k() -> Config:
  """'Big Transfer' (arXiv 1912.11370), section 3.3; data and loss as of configs/vit_l16.py:imagenet21k."""
  return Config(
    total='90 epochs',
    batch_size=4096,
    model=ResNetConfig(variant='R152x4', head_bias=-10.0, dtype='bfloat16'),
    data=DataConfig(source='tfds:imagenet21k', split='full[102400:]', num_classes=21843, prefetch=4),
    evaluators={'val': ClassificationEvaluatorConfig(split='full[:102400]', every='10000 steps')},
    objective=ClassificationObjective(loss='sigmoid'),
    # Published: 1e-4 in the loss. Momentum 0.9 adds that up tenfold; here weights decay beside the momentum.
    optimizer=OptimizerConfig(name='sgd', weight_decay=1e-3),
    # 0.03 for 256 images.
    schedule=ScheduleConfig(
      learning_rate=0.48,
      warmup='5000 steps',
      decay='staircase',
      drops=('30 epochs', '60 epochs', '80 epochs'),
    ),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )


def jft() -> Config:
  """As `imagenet21k`, in 40 epochs; data and loss as of configs/vit_l16.py:jft. JFT-300M is Google's."""
  return Config(
    total='40 epochs',
    batch_size=4096,
    model=ResNetConfig(variant='R152x4', head_bias=-10.0, dtype='bfloat16'),
    data=DataConfig(source='tfds:jft_300m', split='train', num_classes=18291, max_labels=32, prefetch=4),
    objective=ClassificationObjective(loss='sigmoid'),
    optimizer=OptimizerConfig(name='sgd', weight_decay=1e-3),
    schedule=ScheduleConfig(
      learning_rate=0.48,
      warmup='5000 steps',
      decay='staircase',
      drops=('10 epochs', '23 epochs', '30 epochs', '37 epochs'),
    ),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )
