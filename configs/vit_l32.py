"""Pre-training of ViT-L/32 by the published recipe, the data as argument: imagenet21k, jft, imagenet2012.

python -m vit_jax.main --config=configs/vit_l32.py:imagenet21k --workdir=runs/vit_l32

Published (quoted from the original project's table, ImageNet-21k, fine-tuned on ImageNet at 384 px): 81.89 %.
Not measured here.

Target: v3-128 --config.mesh.fsdp=8 --config.model.remat=none
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(source: str = 'imagenet21k'):
  return to_config_dict(recipes.pretraining('L/32', source))
