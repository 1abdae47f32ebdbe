"""Pre-training by the published recipes, size and data as arguments: the paper's table 3, and AugReg's.

python -m vit_jax.main --config=configs/vit.py:l16,imagenet21k --workdir=runs/vit_l16
python -m vit_jax.main --config=configs/vit_l16.py:imagenet21k --workdir=runs/vit_l16    # the same
python -m vit_jax.main --config=configs/vit.py:r50x1,jft --workdir=runs/r50x1

The data: imagenet21k, jft (JFT-300M, which is Google's), imagenet2012, or augreg: ImageNet-21k by 'How to train your
ViT?' (AugReg, arXiv 2106.10270), the run that its authors recommend. What was published of a size is in the header of
its own file, such as configs/vit_l16.py; of hybrids and ResNets in configs/ablations/hybrid.py.

Target: v3-128
"""

import functools

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.foundation.errors import UserError

# Table 3, JFT-300M: variant -> (epochs, learning rate).
_JFT = {
  'B/32': (7, 8e-4),
  'B/16': (7, 8e-4),
  'L/32': (7, 6e-4),
  'L/16': (14, 4e-4),  # 7 epochs too: --config.total='7 epochs'
  'H/14': (14, 3e-4),
  'R50x1': (7, 1e-3),
  'R50x2': (7, 1e-3),
  'R101x1': (7, 8e-4),
  'R152x1': (7, 6e-4),
  'R152x2': (7, 6e-4),
  'R50+B/16': (7, 8e-4),
  'R50+L/32': (7, 2e-4),
}
# Table 3, ImageNet-21k: variant -> size of the pre-logits layer.
_IMAGENET21K = {'B/32': 768, 'B/16': 768, 'L/32': 1024, 'L/16': 1024}
# Table 3, ImageNet.
_IMAGENET2012 = ('Ti/16', 'S/32', 'S/16', 'B/32', 'B/16', 'L/32', 'L/16', 'H/14')
# AugReg: variant -> augmentation.
_AUGREG = {
  'Ti/16': 'none',
  'S/32': 'none',
  'S/16': 'light1',
  'B/32': 'light1',
  'B/16': 'medium1',
  'L/16': 'strong1',
}


def get_config(size_and_data: str = 'l16,imagenet21k'):
  size, _, data = size_and_data.partition(',')
  variant = recipes.variant_of(size)
  sizes = {imagenet21k: _IMAGENET21K, augreg: _AUGREG, jft: _JFT, imagenet2012: _IMAGENET2012}
  published = {
    recipe.__name__: functools.partial(recipe, variant)
    for recipe, variants in sizes.items()
    if variant in variants
  }
  if not published:
    known = ', '.join(dict.fromkeys([*_IMAGENET2012, *_JFT]))
    raise UserError(f'configs/vit.py has no size {size!r}; choose one of {known}.')
  if 'augreg' in published:  # which is the only one on ImageNet-21k for Ti and S
    published = {'imagenet21k': published['augreg'], **published}
  return recipes.choose(f'vit.py:{size}', data, published)


def imagenet21k(variant: str) -> c.Config:
  """The paper's. Loss, head bias, pre-logits layer and end value are as its authors describe them."""
  return c.Config(
    total='90 epochs',
    batch_size=4096,
    model=c.ViTConfig(
      variant=variant, dropout=0.1, pre_logits_size=_IMAGENET21K[variant], head_bias=-10.0, dtype='bfloat16'
    ),
    # The 21,843-class release; its authors held the first 102,400 examples out.
    data=c.DataConfig(source='tfds:imagenet21k', split='full[102400:]', num_classes=21843, prefetch=4),
    evaluators={'val': c.ClassificationEvaluatorConfig(split='full[:102400]', every='10000 steps')},
    objective=c.ClassificationObjective(loss='sigmoid'),
    optimizer=c.OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.03, clip_norm=1.0),
    schedule=c.ScheduleConfig(learning_rate=1e-3, warmup='10000 steps', decay='linear', end_value=1e-5),
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )


def augreg(variant: str) -> c.Config:
  """AugReg's. Of Ti and S it is the only published one on ImageNet-21k."""
  return c.Config(
    total='300 epochs',
    batch_size=4096,
    model=c.ViTConfig(variant=variant, head_bias=-10.0, dtype='bfloat16'),
    data=c.DataConfig(
      source='tfds:imagenet21k',
      split='full[102400:]',
      num_classes=21843,
      augment=_AUGREG[variant],
      prefetch=4,
    ),
    evaluators={'val': c.ClassificationEvaluatorConfig(split='full[:102400]', every='10000 steps')},
    objective=c.ClassificationObjective(loss='sigmoid'),
    optimizer=c.OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.1, clip_norm=1.0),
    schedule=c.ScheduleConfig(learning_rate=1e-3, warmup='10000 steps', decay='cosine'),
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )


def jft(variant: str) -> c.Config:
  """The paper's, of ViTs, hybrids and ResNets."""
  epochs, learning_rate = _JFT[variant]
  kind = c.ViTConfig if '/' in variant else c.ResNetConfig
  return c.Config(
    total=f'{epochs} epochs',
    batch_size=4096,
    model=kind(variant=variant, head_bias=-10.0, dtype='bfloat16'),
    # 375 million labels on 300 million images (arXiv 1707.02968); a list of more than 32 is an error.
    data=c.DataConfig(source='tfds:jft_300m', split='train', num_classes=18291, max_labels=32, prefetch=4),
    objective=c.ClassificationObjective(loss='sigmoid'),
    optimizer=c.OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.1, clip_norm=1.0),
    schedule=c.ScheduleConfig(learning_rate=learning_rate, warmup='10000 steps', decay='linear'),
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )


def imagenet2012(variant: str) -> c.Config:
  """The paper's."""
  return c.Config(
    total='300 epochs',
    batch_size=4096,
    model=c.ViTConfig(variant=variant, dropout=0.1, dtype='bfloat16'),
    data=c.DataConfig(source='tfds:imagenet2012', split='train', num_classes=1000, prefetch=4),
    evaluators={'val': c.ClassificationEvaluatorConfig(split='validation', every='5 epochs')},
    optimizer=c.OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.3, clip_norm=1.0),
    schedule=c.ScheduleConfig(learning_rate=3e-3, warmup='10000 steps', decay='cosine'),
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )
