"""Self-supervision by masked patch prediction (the paper, section 4.6 and appendix B.1.2), without labels.

python -m vit_jax.main --config=configs/masked_patch.py:jft --workdir=runs/masked
python -m vit_jax.main --config=configs/finetune.py:runs/masked,imagenet2012 --workdir=runs/masked_imagenet
python -m vit_jax.main --config=configs/masked_patch.py:cifar10 --workdir=runs/masked_cifar10

ViT-B/16 on jft, imagenet21k or imagenet2012: a million steps, Adam at 2e-4; or the small model of
configs/cifar10_scratch.py on cifar10. Half of the patches are corrupted (80 % of these become a learned mask,
10 % another patch, 10 % are kept), and the model predicts the mean colour of each in 3 bits a channel. In the
cifar10 run a 5-shot probe of the mean features says every tenth of the run whether they become better.

Published (quoted from the paper, section 4.6): B/16 so pre-trained on JFT, then fine-tuned on ImageNet:
79.9 %, 2 % more than from scratch, 4 % less than after supervised pre-training. Measured on CIFAR-10:
benchmarks/RESULTS.md.

Target: v3-128
"""

import dataclasses

from vit_jax import recipes
from vit_jax.config import (
  CheckpointConfig,
  Config,
  DataConfig,
  FewShotEvaluatorConfig,
  MaskedPatchesObjective,
  OptimizerConfig,
  ScheduleConfig,
  ViTConfig,
)

_JFT = DataConfig(source='tfds:jft_300m', split='train', max_labels=32)
_IMAGENET21K = DataConfig(source='tfds:imagenet21k', split='full[102400:]')
_IMAGENET = DataConfig(source='tfds:imagenet2012', split='train')


def get_config(source: str = 'jft'):
  sources = {
    'jft': lambda: paper(_JFT),
    'imagenet21k': lambda: paper(_IMAGENET21K),
    'imagenet2012': lambda: paper(_IMAGENET),
    'cifar10': cifar10,
  }
  return recipes.choose('masked_patch', source, sources)


def paper(data: DataConfig) -> Config:
  """Appendix B.1.2, which gives no weight decay. The class token is of use when the model is fine-tuned."""
  return Config(
    total='1000000 steps',
    batch_size=4096,
    model=ViTConfig(variant='B/16', pool='none', class_token=True, mask_token=True, dtype='bfloat16'),
    data=dataclasses.replace(data, prefetch=4),
    objective=MaskedPatchesObjective(),
    optimizer=OptimizerConfig(name='adam', b1=0.9, b2=0.999, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=2e-4, warmup='10000 steps', decay='cosine'),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )


def cifar10() -> Config:
  """The small model of configs/cifar10_scratch.py."""
  config = recipes.cifar10()
  probe = FewShotEvaluatorConfig(split='test', every='10%', pool='gap', seeds=2)
  return dataclasses.replace(
    config,
    model=dataclasses.replace(config.model, pool='none', mask_token=True),
    objective=MaskedPatchesObjective(),
    evaluators={'probe': probe},
    checkpoint=CheckpointConfig(),
  )
