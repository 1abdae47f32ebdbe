"""Self-supervision by masked patch prediction (the paper, section 4.6 and appendix B.1.2), without labels.

python -m vit_jax.main --config=configs/masked_patch.py:jft --workdir=runs/masked
python -m vit_jax.main --config=configs/finetune.py:runs/masked,imagenet2012 --workdir=runs/masked_imagenet
python -m vit_jax.main --config=configs/masked_patch.py:cifar10 --workdir=runs/masked_cifar10

ViT-B/16 on jft, imagenet21k or imagenet2012: a million steps, Adam at 2e-4; or the small model of
configs/cifar10_scratch.py on cifar10. Half of the patches are corrupted (80 % of these become a learned mask,
10 % another patch, 10 % are kept), and the mean colour of each is to be guessed, in 3 bits a channel. In the
cifar10 run a 5-shot probe of the mean features says every tenth of the run whether they become better.

Published (quoted from the paper, section 4.6): B/16 so pre-trained on JFT, then fine-tuned on ImageNet:
79.9 %, 2 % more than from scratch, 4 % less than after supervised pre-training. Measured on CIFAR-10:
benchmarks/RESULTS.md.

Target: v3-128 --config.mesh.fsdp=8
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(source: str = 'jft'):
  return to_config_dict(recipes.masked_patches(source))
