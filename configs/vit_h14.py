"""Pre-training of ViT-H/14 by the published recipe, the data as argument: jft, imagenet2012.

python -m vit_jax.main --config=configs/vit_h14.py:jft --workdir=runs/vit_h14

Published (quoted from the paper, table 2, after fine-tuning on ImageNet): 88.55 % from JFT-300M, 2.5k
TPUv3-core-days. Not measured here.

Target: v3-128 --config.mesh.fsdp=8 --config.model.remat=none
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(source: str = 'jft'):
  return to_config_dict(recipes.pretraining('H/14', source))
