"""Vision Transformer, hybrid and ResNet of equal FLOPs (the paper's figure 5 and table 6).

python -m vit_jax.main --config=configs/ablations/hybrid.py:hybrid --workdir=runs/hybrid
python -m vit_jax.main --config=configs/ablations/hybrid.py:hybrid,small --workdir=runs/hybrid_small
python -m vit_jax.main --config=configs/ablations/hybrid.py:r50x1,jft --workdir=runs/r50x1

'hybrid': the root and two bottlenecks of a ResNet, then 5 of the 6 blocks of `recipes.cifar10`'s ViT, on as
many tokens; it takes 1.025 times the FLOPs of that ViT. 'small': one bottleneck of half the width, then 3 of
the 4 blocks of the small ViT; 0.966 times its FLOPs. The ViT and the ResNet: configs/ablations/resnet.py.
'NAME,jft': the paper's own recipe on JFT-300M (configs/vit.py) of r50x1, r50x2, r101x1, r152x1, r152x2, r50+b16 or
r50+l32.

Published (arXiv 2010.11929, table 6; pre-trained on JFT-300M for 7 epochs, then fine-tuned), exaFLOPs of the
pre-training and accuracy on ImageNet and CIFAR-10:

  ViT-B/32     55  80.73 %  98.61 %        R50x1+ViT-B/32  106  84.90 %  99.01 %
  ViT-L/32    196  84.37 %  99.19 %        R50x1+ViT-L/32  246  85.68 %  99.24 %
  ViT-B/16    224  84.15 %  99.00 %        R50x1+ViT-B/16  274  85.58 %  99.14 %
  ViT-L/16    783  86.30 %  99.38 %        R50x1+ViT-L/16  859  86.60 %  99.18 %
  ResNet50x1   50  77.54 %  97.67 %        ResNet50x2      199  82.12 %  98.29 %

Here on CIFAR-10 from scratch (prepared for TFDS: README, "Your data").

Target: cpu:1
"""

from vit_jax import recipes
from vit_jax.options import config_files

_HYBRID = {'model.stem_blocks': (2,), 'model.stem_width': 64, 'model.patch': 1, 'model.depth': 5}
_SMALL_HYBRID = {'model.stem_blocks': (1,), 'model.stem_width': 32, 'model.patch': 1, 'model.depth': 3}


def get_config(arguments: str = 'hybrid'):
  if arguments.endswith(',jft'):
    return config_files.load(f'vit:{arguments}')
  hybrid = _SMALL_HYBRID if 'small' in arguments.split(',') else _HYBRID
  return recipes.changed_cifar10('ablations/hybrid.py', arguments, {'hybrid': hybrid})
