"""How patches know where they are (the paper's appendix D.4, table 8).

python -m vit_jax.study position --workdir=runs/position
python -m vit_jax.study position:longer --workdir=runs/position_longer

All eight positions with the class token, as in the paper's table; 16 patches of 8 pixels, 6 epochs of CIFAR-10:
configs/ablations/position.py. 'longer': three of the table's rows for 20 epochs, with the class token and with the
mean of the tokens. The class token has no offset from a patch, so that by relative positions it learns where
things are only from what patches tell each other; the mean reads the patches themselves.
"""

from vit_jax.models.parts.positions import POSITIONS
from vit_jax.study.definition import Study, Variant, chosen

# Of B/16, 5-shot on ImageNet.
_PUBLISHED = {'none': '61.4 %', 'learned': '64.2 %', 'learned2d': '64.0 %', 'relative_query_1d': '64.0 %'}

# Positions, what the head reads, and how long.
_CHOICES = {
  'all': (POSITIONS.names(), ('token',), '6 epochs'),
  'longer': (('none', 'learned', 'relative_query_1d'), ('token', 'gap'), '20 epochs'),
}


def get_study(choice: str = 'all') -> Study:
  positions, pools, total = chosen(choice, _CHOICES)
  variants = {}
  options = {'model.patch': 8, 'total': total}
  for pool in pools:
    for position in positions:
      name = position if len(pools) == 1 else f'{position}_{pool}'
      published = _PUBLISHED.get(position, '') if pool == 'token' else ''
      variants[name] = Variant(f'position:{position},{pool},small', options, published=published)
  return Study(f'Positions on CIFAR-10, {total}', variants)
