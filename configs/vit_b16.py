"""Pre-training of ViT-B/16 by configs/vit.py, the data as argument: imagenet21k, augreg, jft, imagenet2012.

python -m vit_jax.main --config=configs/vit_b16.py:imagenet21k --workdir=runs/vit_b16

Published (quoted from the original project's tables, ImageNet-21k, then ImageNet at 384 px): 84.53 %;
AugReg 85.49 %. Not measured here.

Target: v3-128
"""

from vit_jax.options import config_files


def get_config(source: str = 'imagenet21k'):
  return config_files.load(f'vit:b16,{source}')
