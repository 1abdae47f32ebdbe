"""How large patches are (the paper's appendix D.2 and figure 8).

python -m vit_jax.main --config=configs/ablations/patch.py:2 --workdir=runs/patch_2
python -m vit_jax.main --config=configs/ablations/patch.py:8,small --workdir=runs/patch_8_small

The number is config.model.patch, in pixels; that of `recipes.cifar10` is 4, which are 64 tokens. 'small': a
smaller model and one epoch, a minute or two of one core.

Published (as in depth.py): smaller patches give surprisingly robust improvements without more parameters. Here on
CIFAR-10 from scratch.

Target: cpu:1
"""

from vit_jax import recipes

_OPTIONS = {str(patch): {'model.patch': patch} for patch in (2, 4, 8, 16)}


def get_config(arguments: str = '4'):
  return recipes.changed_cifar10('ablations/patch.py', arguments, _OPTIONS)
