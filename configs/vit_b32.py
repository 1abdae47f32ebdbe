"""Pre-training of ViT-B/32 by the published recipe, the data as argument: imagenet21k, jft, imagenet2012,
or augreg (ImageNet-21k by AugReg's recipe, with its light1 augmentation).

python -m vit_jax.main --config=configs/vit_b32.py:imagenet21k --workdir=runs/vit_b32

Published (quoted from the original project's tables, ImageNet-21k, then ImageNet at 384 px): 81.66 %;
AugReg 83.59 %. Not measured here.

Target: v3-32 --config.model.remat=none
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(source: str = 'imagenet21k'):
  return to_config_dict(recipes.pretraining('B/32', source))
