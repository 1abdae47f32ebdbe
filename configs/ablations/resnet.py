"""A ResNet against a Vision Transformer of equal FLOPs (the paper's section 4.4 and table 6).

python -m vit_jax.main --config=configs/ablations/resnet.py:resnet --workdir=runs/resnet
python -m vit_jax.main --config=configs/ablations/resnet.py:vit,small --workdir=runs/vit_small

'vit': that of `recipes.cifar10`. 'resnet': BiT's, of 3, 4, 3 and 3 bottlenecks, as wide as R50x1; it takes
1.007 times the FLOPs of that ViT. 'small': a smaller model and one epoch, a minute or two of one core; that
ResNet has 2 bottlenecks a stage, half the width, and 0.982 times the FLOPs of the small ViT.

Published (arXiv 2010.11929, table 6; pre-trained on JFT-300M for 7 epochs, then fine-tuned), exaFLOPs of the
pre-training and accuracy on ImageNet and CIFAR-10:

  ViT-B/32     55  80.73 %  98.61 %        ResNet50x1    50  77.54 %  97.67 %
  ViT-L/32    196  84.37 %  99.19 %        ResNet50x2   199  82.12 %  98.29 %
  ViT-L/16    783  86.30 %  99.38 %        ResNet152x2  563  84.97 %  99.06 %

Here on CIFAR-10 from scratch (prepared for TFDS: README, "Your data"), so little data that one expects the
ResNet ahead (the paper's section 4.3); what was measured: docs/findings.md.

Target: cpu:1
"""

from vit_jax import recipes
from vit_jax.config import ResNetConfig

_RESNET = ResNetConfig(variant='custom', blocks=(3, 4, 3, 3), width=64)
_SMALL_RESNET = ResNetConfig(variant='custom', blocks=(2, 2, 2, 2), width=32)


def get_config(arguments: str = 'resnet'):
  resnet = _SMALL_RESNET if 'small' in arguments.split(',') else _RESNET
  return recipes.changed_cifar10('ablations/resnet.py', arguments, {'vit': {}, 'resnet': {'model': resnet}})
