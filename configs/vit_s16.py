"""Pre-training of ViT-S/16 by configs/vit.py, the data as argument: imagenet21k (by AugReg), imagenet2012.

python -m vit_jax.main --config=configs/vit_s16.py:imagenet21k --workdir=runs/vit_s16

Published (quoted from AugReg, ImageNet-21k, fine-tuned on ImageNet at 384 px): 83.73 %. Not measured here.

Target: v3-32
"""

from vit_jax.options import config_files


def get_config(source: str = 'imagenet21k'):
  return config_files.load(f'vit:s16,{source}')
