"""Pre-training of ViT-S/16 by the published recipe, the data as argument: imagenet21k (by AugReg),
imagenet2012.

python -m vit_jax.main --config=configs/vit_s16.py:imagenet21k --workdir=runs/vit_s16

Published (quoted from AugReg, its light1 augmentation, ImageNet-21k, fine-tuned on ImageNet at 384
px): 83.73 %. Not measured here.

Target: v3-32 --config.model.remat=none
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(source: str = 'imagenet21k'):
  return to_config_dict(recipes.pretraining('S/16', source))
