"""Pre-training of BiT's ResNets by the published recipe, the data as argument: jft (BiT-L), imagenet21k (BiT-M).

python -m vit_jax.main --config=configs/bit.py:jft --workdir=runs/bit_l
python -m vit_jax.main --config=configs/bit.py:imagenet21k --config.model.variant=R101x3 --workdir=runs/bit_m

Published (quoted from the ViT paper, table 2, after fine-tuning on ImageNet): BiT-L, R152x4, 87.54 % from JFT-300M;
9.9k TPUv3-core-days. Not measured here.

Target: v3-512
"""

import dataclasses

from vit_jax import config as c
from vit_jax import recipes


def get_config(source: str = 'imagenet21k'):
  return recipes.choose('bit.py', source, {'imagenet21k': imagenet21k, 'jft': jft})


def imagenet21k() -> c.Config:
  """'Big Transfer' (arXiv 1912.11370), section 3.3; data and loss as in configs/vit.py:l16,imagenet21k."""
  return c.Config(
    total='90 epochs',
    batch_size=4096,
    model=c.ResNetConfig(variant='R152x4', head_bias=-10.0, dtype='bfloat16'),
    data=c.DataConfig(source='tfds:imagenet21k', split='full[102400:]', num_classes=21843, prefetch=4),
    evaluators={'val': c.ClassificationEvaluatorConfig(split='full[:102400]', every='10000 steps')},
    objective=c.ClassificationObjective(loss='sigmoid'),
    # Published: 1e-4 in the loss. Momentum 0.9 adds that up tenfold; here weights decay beside the momentum.
    optimizer=c.OptimizerConfig(name='sgd', weight_decay=1e-3),
    # 0.03 for 256 images.
    schedule=c.ScheduleConfig(
      learning_rate=0.48,
      warmup='5000 steps',
      decay='staircase',
      drops=('30 epochs', '60 epochs', '80 epochs'),
    ),
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )


def jft() -> c.Config:
  """As `imagenet21k`, in 40 epochs; data as in configs/vit.py:l16,jft. JFT-300M is Google's."""
  config = imagenet21k()
  drops = ('10 epochs', '23 epochs', '30 epochs', '37 epochs')
  return dataclasses.replace(
    config,
    total='40 epochs',
    data=c.DataConfig(source='tfds:jft_300m', split='train', num_classes=18291, max_labels=32, prefetch=4),
    evaluators={},
    schedule=dataclasses.replace(config.schedule, drops=drops),
  )
