"""Pre-training of ViT-Ti/16 by the published recipe, the data as argument: imagenet21k (by AugReg),
imagenet2012.

python -m vit_jax.main --config=configs/vit_ti16.py:imagenet21k --workdir=runs/vit_ti16

Published (quoted from AugReg, ImageNet-21k, fine-tuned on ImageNet at 384 px): 78.22 %. Not measured here.

Target: v3-32 --config.model.remat=none
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(source: str = 'imagenet21k'):
  return to_config_dict(recipes.pretraining('Ti/16', source))
