"""Pre-training of ViT-S/32 by the published recipe, the data as argument: imagenet21k (by AugReg),
imagenet2012.

python -m vit_jax.main --config=configs/vit_s32.py:imagenet21k --workdir=runs/vit_s32

No number of the published tables at hand is of this recipe.

Target: v3-8 --config.model.remat=none
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(source: str = 'imagenet21k'):
  return to_config_dict(recipes.pretraining('S/32', source))
