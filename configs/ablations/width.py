"""How wide a token is (the paper's appendix D.2 and figure 8).

python -m vit_jax.main --config=configs/ablations/width.py:256 --workdir=runs/width_256
python -m vit_jax.main --config=configs/ablations/width.py:32,small --workdir=runs/width_32_small

The number is config.model.width; that of `recipes.cifar10` is 128. Heads become wider with it, MLPs do not
(mlp.py). 'small': a smaller model and one epoch, a minute or two of one core.

Published (as in depth.py): scaling the width gives the smallest changes. Here on CIFAR-10 from scratch.

Target: cpu:1
"""

from vit_jax import recipes

_OPTIONS = {str(width): {'model.width': width} for width in (32, 64, 128, 256, 512)}


def get_config(arguments: str = '128'):
  return recipes.changed_cifar10('ablations/width.py', arguments, _OPTIONS)
