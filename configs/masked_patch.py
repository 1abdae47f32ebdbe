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
import functools

from vit_jax import config as c
from vit_jax import recipes

_DATA = {
  'jft': c.DataConfig(source='tfds:jft_300m', split='train', max_labels=32, prefetch=4),
  'imagenet21k': c.DataConfig(source='tfds:imagenet21k', split='full[102400:]', prefetch=4),
  'imagenet2012': c.DataConfig(source='tfds:imagenet2012', split='train', prefetch=4),
}


def get_config(source: str = 'jft'):
  of_paper = {name: functools.partial(paper, data) for name, data in _DATA.items()}
  return recipes.choose('masked_patch.py', source, {**of_paper, 'cifar10': cifar10})


def paper(data: c.DataConfig) -> c.Config:
  """Appendix B.1.2, which gives no weight decay. The class token is of use when the model is fine-tuned."""
  return c.Config(
    total='1000000 steps',
    batch_size=4096,
    model=c.ViTConfig(variant='B/16', pool='none', class_token=True, mask_token=True, dtype='bfloat16'),
    data=data,
    objective=c.MaskedPatchesObjective(),
    optimizer=c.OptimizerConfig(name='adam', b1=0.9, b2=0.999, clip_norm=1.0),
    schedule=c.ScheduleConfig(learning_rate=2e-4, warmup='10000 steps', decay='cosine'),
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )


def cifar10() -> c.Config:
  """The small model of configs/cifar10_scratch.py."""
  config = recipes.cifar10()
  return dataclasses.replace(
    config,
    model=dataclasses.replace(config.model, pool='none', mask_token=True),
    objective=c.MaskedPatchesObjective(),
    evaluators={'probe': c.FewShotEvaluatorConfig(split='test', every='10%', pool='gap', seeds=2)},
    checkpoint=c.CheckpointConfig(),
  )
