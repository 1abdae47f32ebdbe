"""Pre-training of ViT-L/16 by the published recipe, the data as argument: imagenet21k, jft, imagenet2012,
or augreg (ImageNet-21k by AugReg's recipe, with its strong1 augmentation).

python -m vit_jax.main --config=configs/vit_l16.py:imagenet21k --workdir=runs/vit_l16

Published (quoted from the paper, table 2, after fine-tuning on ImageNet): 87.76 % from JFT-300M, 85.30 % from
ImageNet-21k; 0.68k and 0.23k TPUv3-core-days. AugReg, at 384 px: 85.59 %. Not measured here.

Target: v3-128 --config.mesh.fsdp=8 --config.model.remat=none
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(source: str = 'imagenet21k'):
  return to_config_dict(recipes.pretraining('L/16', source))
