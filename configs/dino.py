"""Self-distillation (DINOv2, arXiv 2304.07193): pre-training without labels, by a teacher that is the model's average.

python -m vit_jax.main --config=configs/dino.py:l16 --workdir=runs/dino_l16
python -m vit_jax.main --config=configs/finetune.py:runs/dino_l16,imagenet2012 --workdir=runs/dino_l16_tuned
python -m vit_jax.main --config=configs/finetune.py:runs/dino_l16,imagenet2012,head --workdir=runs/dino_l16_probe
python -m vit_jax.main --config=configs/dino.py:small,tfds:cifar10 --workdir=runs/dino_small

L/16 on imagenet2012 by the authors' short recipe (dinov2/configs/train/vitl16_short.yaml, ssl_default_config.yaml). It
differs in three things: their weight decay rises from 0.04 to 0.4, and here is 0.04; their blocks are dropped with one
probability, and here by their depth; the norms of their prototypes learn. 'small' is a model of half a million
parameters on images of 32 pixels, of any data, for a processor.

A weighted vote of the 20 nearest neighbours among the training images is measured of the student ('knn_all') and of
the teacher ('knn_ema_all'), which is what loads (docs/distillation.md).

Published (quoted from the authors' README): 81.6 % by neighbours, 82.9 % by a linear probe. Not measured here; of the
small model docs/findings.md has what was.

Target: v3-128
"""

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.foundation.errors import UserError

_IMAGENET = {'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)}


def get_config(size_and_source: str = 'l16'):
  size, _, source = size_and_source.partition(',')
  if size == 'small':
    return c.to_config_dict(small(source or 'tfds:cifar10'))
  if size != 'l16':
    raise UserError(f'configs/dino.py has no size {size!r}; choose l16 or small.')
  return c.to_config_dict(paper(source or 'tfds:imagenet2012'))


def paper(source: str) -> c.Config:
  """The authors' recipe, in which all that an option of ours does not name is the objective's default."""
  return c.Config(
    total='125000 steps',
    batch_size=2048,
    model=c.DinoConfig(
      variant=recipes.variant_of('l16'), layer_scale=1e-5, stochastic_depth=0.3, dtype='bfloat16'
    ),
    data=c.DataConfig(
      source=source,
      area=(0.32, 1.0),
      interpolation='pillow_bicubic',
      augment='dino(1,0)',
      prefetch=4,
      **_IMAGENET,
    ),
    objective=c.SelfDistillationObjective(),
    optimizer=c.OptimizerConfig(
      name='adam',
      weight_decay=0.04,
      clip_norm=3.0,
      layer_decay=0.9,
      lr_multipliers=(('^patch_embedding/', 0.2),),
    ),
    # 0.004 for a batch of 1,024, by the root of the batch.
    schedule=c.ScheduleConfig(learning_rate=4e-3 * 2**0.5, warmup='10%', decay='cosine', end_value=1e-6),
    ema=0.992,
    ema_schedule='cosine',
    evaluators={'knn': recipes.neighbours('10%', split='validation', crop='central', resize=256)},
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )


def small(source: str) -> c.Config:
  """A small model, a small projection, few crops of weak colours, and a low temperature, since the run is short."""
  colours = 'jitter(0.4)'
  return c.Config(
    total='1500 steps',
    batch_size=64,
    model=c.DinoConfig(
      variant='custom',
      **{'patch': 8, 'width': 96, 'mlp_dim': 288, 'depth': 4, 'heads': 3},
      **{'prototypes': 512, 'projection_hidden': 256, 'projection_width': 64},
    ),
    data=c.DataConfig(source=source, image_size=(32, 32), area=(0.32, 1.0), augment=colours, cache=True),
    objective=c.SelfDistillationObjective(
      local_crops=4,
      local_size=(16, 16),
      local_area=(0.15, 0.5),
      local_augment=colours,
      second_augment=colours,
      temperature=0.04,
    ),
    optimizer=c.OptimizerConfig(name='adam', weight_decay=0.04, clip_norm=3.0),
    schedule=c.ScheduleConfig(learning_rate=2e-3, warmup='10%', decay='cosine', end_value=1e-6),
    ema=0.99,
    ema_schedule='cosine',
    evaluators={'knn': recipes.neighbours('20%', split='val' if source.startswith('folder:') else 'test')},
  )
