"""Pre-training of ViT-B/16 by the published recipe, the data as argument: imagenet21k, jft, imagenet2012,
or augreg (ImageNet-21k by AugReg's recipe, with its medium1 augmentation).

python -m vit_jax.main --config=configs/vit_b16.py:imagenet21k --workdir=runs/vit_b16

Published (quoted from the original project's tables, ImageNet-21k, then ImageNet at 384 px): 84.53 %;
AugReg 85.49 %. Not measured here.

Target: v3-128 --config.mesh.fsdp=8 --config.model.remat=none
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(source: str = 'imagenet21k'):
  return to_config_dict(recipes.pretraining('B/16', source))
