"""Training of an EfficientNet from scratch on ImageNet-1k, the size as argument: b0 to b7, or l2.

python -m vit_jax.main --config=configs/efficientnet.py:b0 --workdir=runs/efficientnet_b0

Numbers: the EfficientNets' published code (arXiv 1905.11946), with RandAugment (arXiv 1909.13719) where the paper has
AutoAugment. l2 is the step of Noisy Student's student at 475 pixels (arXiv 1911.04252, section 3.1): there the images
beside ImageNet's were 14 times as many, of JFT-300M, with a teacher's labels, as `python -m vit_jax.selftrain` writes
them (--config.data.mixture). Afterwards it was fine-tuned at 800 pixels for 1.5 epochs.

Differs from the published code: weight decay is decoupled, and the learning rate decays at every step.

Published (quoted from the papers): b0 77.1 %, b7 84.3 %; l2 88.4 % with JFT-300M, 12.3k TPUv3-core-days. Not
measured here.

Target: v3-2048
"""

from vit_jax import recipes
from vit_jax.config import (
  CheckpointConfig,
  ClassificationEvaluatorConfig,
  ClassificationObjective,
  Config,
  DataConfig,
  EfficientNetConfig,
  OptimizerConfig,
  ScheduleConfig,
)

# Size -> pixels along a side, magnitude of RandAugment.
SIZES = {
  'b0': (224, 9),
  'b1': (240, 9),
  'b2': (260, 9),
  'b3': (300, 9),
  'b4': (380, 9),
  'b5': (456, 17),
  'b6': (528, 17),
  'b7': (600, 28),
  'l2': (475, 27),
}


def get_config(size: str = 'b0'):
  return recipes.choose('efficientnet', size, {name: lambda name=name: recipe(name) for name in SIZES})


def recipe(size: str) -> Config:
  """The published training: RMSProp, by 3 % a smaller learning rate every 2.4 epochs."""
  side, magnitude = SIZES[size]
  return Config(
    total='350 epochs',
    batch_size=2048,
    ema=0.9999,
    model=EfficientNetConfig(
      size.upper(), norm_momentum=0.99, norm_epsilon=1e-3, unroll=False, dtype='bfloat16'
    ),
    data=DataConfig(
      source='tfds:imagenet2012',
      split='train',
      num_classes=1000,
      image_size=(side, side),
      crop='inception',
      area=(0.08, 1.0),
      interpolation='pillow_bicubic',
      augment=f'randaugment(2,{magnitude})',
      mean=(0.485, 0.456, 0.406),
      std=(0.229, 0.224, 0.225),
      threads=16,
      prefetch=4,
    ),
    evaluators={
      'val': ClassificationEvaluatorConfig(
        split='validation', crop='central', resize=side + 32, every='5 epochs'
      )
    },
    objective=ClassificationObjective(label_smoothing=0.1),
    optimizer=OptimizerConfig(
      name='rmsprop', b2=0.9, momentum=0.9, arguments=(('eps', 1e-3),), weight_decay=1e-5
    ),
    schedule=ScheduleConfig(
      learning_rate=0.128, warmup='5 epochs', decay='exponential', end_value=0.128 * 0.97 ** (350 / 2.4)
    ),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )
