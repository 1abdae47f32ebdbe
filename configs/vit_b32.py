"""Pre-training of ViT-B/32 by the published recipe, the data as argument: imagenet21k, jft, imagenet2012.

python -m vit_jax.main --config=configs/vit_b32.py:imagenet21k --workdir=runs/vit_b32

Published (quoted from the original project's table, ImageNet-21k, fine-tuned on ImageNet at 384 px): 81.66 %.
Not measured here.
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(source: str = 'imagenet21k'):
  return to_config_dict(recipes.pretraining('B/32', source))
