"""How patches know where they are (the paper's appendix D.4, table 8).

python -m vit_jax.study position --workdir=runs/position

All eight positions with the class token, as in the paper's table, and three with the mean of the tokens; 16 patches of
8 pixels, 6 epochs of CIFAR-10: configs/ablations/position.py.
"""

from typing import get_args

from vit_jax.models.vit_config import Position
from vit_jax.study.definition import Study, Variant

# Of B/16, 5-shot on ImageNet.
_PUBLISHED = {'none': '61.4 %', 'learned': '64.2 %', 'learned2d': '64.0 %', 'relative_query_1d': '64.0 %'}


def get_study() -> Study:
  options = {'model.patch': 8, 'total': '6 epochs'}
  variants = {
    position: Variant(f'position:{position},token,small', options, published=_PUBLISHED.get(position, ''))
    for position in get_args(Position)
  }
  # The class token has no offsets from patches; the mean has those of all tokens.
  for position in ('none', 'learned', 'relative_query_1d'):
    variants[f'{position}_mean'] = Variant(f'position:{position},gap,small', options)
  return Study('Positions on CIFAR-10, 6 epochs', variants)
