"""Pre-training of ViT-H/14 by configs/vit.py, the data as argument: jft, imagenet2012.

python -m vit_jax.main --config=configs/vit_h14.py:jft --workdir=runs/vit_h14

Published (quoted from the paper, table 2, after fine-tuning on ImageNet): 88.55 % from JFT-300M, 2.5k
TPUv3-core-days. Not measured here.

Target: v3-128
"""

from vit_jax.options import config_files


def get_config(source: str = 'jft'):
  return config_files.load(f'vit:h14,{source}')
