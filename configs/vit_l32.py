"""Pre-training of ViT-L/32 by configs/vit.py, the data as argument: imagenet21k, jft, imagenet2012.

python -m vit_jax.main --config=configs/vit_l32.py:imagenet21k --workdir=runs/vit_l32

Published (quoted from the original project's table, ImageNet-21k, then ImageNet at 384 px): 81.89 %. Not measured here.

Target: v3-128
"""

from vit_jax.options import config_files


def get_config(source: str = 'imagenet21k'):
  return config_files.load(f'vit:l32,{source}')
