"""Pre-training of ViT-Ti/16 by configs/vit.py, the data as argument: imagenet21k (by AugReg), imagenet2012.

python -m vit_jax.main --config=configs/vit_ti16.py:imagenet21k --workdir=runs/vit_ti16

Published (quoted from AugReg, ImageNet-21k, fine-tuned on ImageNet at 384 px): 78.22 %. Not measured here.

Target: v3-32
"""

from vit_jax.options import config_files


def get_config(source: str = 'imagenet21k'):
  return config_files.load(f'vit:ti16,{source}')
