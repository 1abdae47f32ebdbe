"""How many blocks (the paper's appendix D.2 and figure 8).

python -m vit_jax.main --config=configs/ablations/depth.py:12 --workdir=runs/depth_12
python -m vit_jax.main --config=configs/ablations/depth.py:8,small --workdir=runs/depth_8_small

The number is config.model.depth; that of `recipes.cifar10` is 6. 'small': a smaller model and one epoch, a
minute or two of one core.

Published (arXiv 2010.11929, appendix D.2 and figure 8: curves of 5-shot ImageNet accuracy against compute, no
table; all from 8 layers, D = 1024, MLPs of 2048 and patches of 32): scaling depth gives the biggest
improvements, seen up to 64 layers, with diminishing returns after 16 already. Here on CIFAR-10 from scratch
(prepared for TFDS: README, "Your data").

Target: cpu:1
"""

from vit_jax import recipes

_OPTIONS = {str(depth): {'model.depth': depth} for depth in (1, 2, 3, 4, 6, 8, 12, 16, 24)}


def get_config(arguments: str = '6'):
  return recipes.changed_cifar10('ablations/depth.py', arguments, _OPTIONS)
