"""Contrastive learning of views (MoCo v3, arXiv 2104.02057; SimCLR, arXiv 2002.05709): pre-training without labels.

python -m vit_jax.main --config=configs/moco.py:b16 --workdir=runs/moco_b16
python -m vit_jax.main --config=configs/finetune.py:runs/moco_b16,imagenet2012,head --workdir=runs/moco_b16_probe
python -m vit_jax.main --config=configs/moco.py:small,tfds:cifar10 --workdir=runs/moco_small
python -m vit_jax.main --config=configs/moco.py:small_simclr,tfds:cifar10 --workdir=runs/simclr_small

B/16 on imagenet2012 by MoCo v3's paper and its authors' code (main_moco.py; CONFIG.md, "ViT-Base"). Weight decay here
leaves out what is no kernel, and their probe is trained by SGD, ours is a logistic regression. 'small' is a model of
half a million parameters, that of dino.py, on images of 32 pixels of any data, for a processor; 'small_simclr' is the
same by SimCLR's loss: without momentum encoder and predictor.

A weighted vote of the 20 nearest neighbours among the training images is measured of the model ('knn_all') and of the
momentum encoder ('knn_ema_all'), which is what loads (docs/distillation.md).

Published (quoted from the authors' CONFIG.md): 76.7 % by a linear probe. Not measured here; of the small model
docs/findings.md has what was.

Target: v3-128
"""

import dataclasses

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.foundation.errors import UserError

_IMAGENET = {'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)}
_SIZES = ('b16', 'small', 'small_simclr')


def get_config(size_and_source: str = 'b16'):
  size, _, source = size_and_source.partition(',')
  if size not in _SIZES:
    raise UserError(f'configs/moco.py has no size {size!r}; choose one of {", ".join(_SIZES)}.')
  if size == 'b16':
    return c.to_config_dict(paper(source or 'tfds:imagenet2012'))
  config = small(source or 'tfds:cifar10')
  return c.to_config_dict(simclr(config) if size == 'small_simclr' else config)


def paper(source: str) -> c.Config:
  """Section 5, in which all that an option of ours does not name is the model's or the objective's."""
  return c.Config(
    total='300 epochs',
    batch_size=4096,
    # The frequencies of MoCo v3's code are those of MAE's.
    model=c.MocoConfig(variant=recipes.variant_of('b16'), position='sincos2d_mae', dtype='bfloat16'),
    data=c.DataConfig(
      source=source,
      area=(0.08, 1.0),
      interpolation='pillow_bilinear',
      augment='dino(1,0)',
      prefetch=4,
      **_IMAGENET,
    ),
    objective=c.ContrastiveViewsObjective(),
    # The frozen projection of patches is the paper's trick for stability (section 4.2).
    optimizer=c.OptimizerConfig(name='adam', weight_decay=0.1, freeze=('^patch_embedding/',)),
    # 1.5e-4 for a batch of 256.
    schedule=c.ScheduleConfig(learning_rate=2.4e-3, warmup='40 epochs', decay='cosine'),
    ema=0.99,
    ema_schedule='cosine',
    evaluators={'knn': recipes.neighbours('10%', split='validation', crop='central', resize=256)},
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )


def small(source: str) -> c.Config:
  """A small model, a small projection and weak colours, since the run is short."""
  colours = 'jitter(0.4)'
  return c.Config(
    total='700 steps',
    batch_size=128,
    model=c.MocoConfig(
      variant='custom',
      position='sincos2d_mae',
      **{'patch': 8, 'width': 96, 'mlp_dim': 288, 'depth': 4, 'heads': 3},
      **{'projection_hidden': 256, 'projection_width': 64},
    ),
    data=c.DataConfig(source=source, image_size=(32, 32), area=(0.2, 1.0), augment=colours, cache=True),
    objective=c.ContrastiveViewsObjective(second_augment=colours),
    optimizer=c.OptimizerConfig(name='adam', weight_decay=0.1),
    schedule=c.ScheduleConfig(learning_rate=2e-3, warmup='10%', decay='cosine'),
    ema=0.99,
    ema_schedule='cosine',
    evaluators={'knn': recipes.neighbours('20%', split='val' if source.startswith('folder:') else 'test')},
  )


def simclr(config: c.Config) -> c.Config:
  """The same by SimCLR's loss."""
  return dataclasses.replace(
    config,
    model=dataclasses.replace(config.model, predictor=False),
    objective=dataclasses.replace(config.objective, momentum_encoder=False),
    ema=0.0,
    ema_schedule='constant',
  )
