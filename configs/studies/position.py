"""How patches know where they are (the paper's appendix D.4, table 8).

python -m vit_jax.study position --workdir=runs/position

All eight positions with the class token, as in the paper's table; 16 patches of 8 pixels, 6 epochs of CIFAR-10:
configs/ablations/position.py, which has the mean of the tokens too.
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
  return Study('Positions on CIFAR-10, 6 epochs', variants)
