"""Pre-training of ViT-S/32 by configs/vit.py, the data as argument: imagenet21k (by AugReg), imagenet2012.

python -m vit_jax.main --config=configs/vit_s32.py:imagenet21k --workdir=runs/vit_s32

No number of the published tables at hand is of this recipe.

Target: v3-8
"""

from vit_jax.options import config_files


def get_config(source: str = 'imagenet21k'):
  return config_files.load(f'vit:s32,{source}')
