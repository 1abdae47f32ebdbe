"""MLPs with locality, and images that grow during training (a student poster on CIFAR-10).

python -m vit_jax.main --config=configs/ablations/locality.py:locality,grow --workdir=runs/locality_grow
python -m vit_jax.main --config=configs/ablations/locality.py:plain,small --workdir=runs/plain_small

'plain': neither; 'locality': a depthwise convolution in every MLP (LocalViT, arXiv 2104.05707); 'grow':
images of 16 pixels for 40 % of the run, of 24 until 70 %. 'small': a smaller model and one epoch, a minute or
two of one core.

Published (a student poster; 40 epochs on a GPU): plain 63 % of the test images, 27 minutes; with both 71 %,
33 minutes. LocalViT: DeiT-Ti on ImageNet 72.2 % -> 74.8 %. Here on CIFAR-10 from scratch (prepared for TFDS:
README, "Your data"); what was measured: docs/findings.md.

Target: cpu:1
"""

from vit_jax import recipes

_OPTIONS = {
  'plain': {},
  'locality': {'model.mlp': 'local'},
  'grow': {'data.progressive_resizing': (('40%', 16), ('70%', 24))},
}


def get_config(arguments: str = 'plain'):
  return recipes.changed_cifar10('ablations/locality.py', arguments, _OPTIONS)
