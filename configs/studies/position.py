"""How patches know where they are, and what the head reads, at full length (the paper's appendix D.4, table 8).

python -m vit_jax.study position --workdir=runs/position

All eight positions with both heads, 16 patches of 8 pixels, 40 epochs of CIFAR-10: configs/ablations/position.py.
"""

from typing import get_args

from vit_jax.models.vit_config import Position
from vit_jax.study.definition import Study, Variant

_PUBLISHED = {'none': '61.4 %', 'learned': '64.2 %', 'learned2d': '64.0 %', 'relative_query_1d': '64.0 %'}


def get_study() -> Study:
  options = {'model.patch': 8, 'total': '40 epochs'}
  variants = {}
  for position in get_args(Position):
    for pool in ('gap', 'token'):
      published = _PUBLISHED.get(position, '') if pool == 'token' else ''  # of B/16, 5-shot on ImageNet
      variants[f'{position}_{pool}'] = Variant(
        f'position:{position},{pool},small', options, published=published
      )
  return Study('Positions on CIFAR-10, 40 epochs', variants)
