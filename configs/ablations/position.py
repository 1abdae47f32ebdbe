"""How patches know where they are, and what the head reads (the paper's appendix D.4, table 8).

python -m vit_jax.main --config=configs/ablations/position.py:rotary,gap --workdir=runs/rotary_gap
python -m vit_jax.main --config=configs/ablations/position.py:none,token,small --workdir=runs/none_token_small

The first argument is a value of config.model.position, 'learned' if there is none; the second one 'gap' (also
if there is none) or 'token'. 'small': a smaller model and one epoch, a minute or two of one core.

Published (arXiv 2010.11929, table 8; B/16, 5-shot linear on ImageNet, added to the tokens before the first
block): none 0.614, learned (1-D) 0.642, learned2d 0.640, relative (here 'relative_query_1d') 0.640. Here
on CIFAR-10 from scratch (prepared for TFDS: README, "Your data"); what was measured: docs/findings.md.

Target: cpu:1
"""

from vit_jax import recipes
from vit_jax.models.parts.positions import POSITIONS

_OPTIONS = {name: {'model.position': name} for name in POSITIONS.names()}
_OPTIONS |= {pool: {'model.pool': pool} for pool in ('gap', 'token')}


def get_config(arguments: str = 'learned,gap'):
  return recipes.changed_cifar10('ablations/position.py', arguments, _OPTIONS)
