"""Pre-training of ViT-L/16 by configs/vit.py, the data as argument: imagenet21k, augreg, jft, imagenet2012.

python -m vit_jax.main --config=configs/vit_l16.py:imagenet21k --workdir=runs/vit_l16

Published (quoted from the paper, table 2, after fine-tuning on ImageNet): 87.76 % from JFT-300M, 85.30 % from
ImageNet-21k; 0.68k and 0.23k TPUv3-core-days. AugReg, at 384 px: 85.59 %. Not measured here.

Target: v3-128
"""

from vit_jax.options import config_files


def get_config(source: str = 'imagenet21k'):
  return config_files.load(f'vit:l16,{source}')
