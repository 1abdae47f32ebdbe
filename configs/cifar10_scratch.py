"""CIFAR-10 from scratch with a small Vision Transformer, on a laptop or one GPU.

python -m vit_jax.main --config=configs/cifar10_scratch.py --workdir=runs/cifar10
python -m vit_jax.main --config=configs/cifar10_scratch.py:augment,grow --workdir=runs/cifar10_better
python -m vit_jax.main --config=configs/cifar10_scratch.py --workdir=runs/short --config.total='3 epochs'

'augment': RandAugment and mixup beside the random crop and the mirroring; for long runs. 'grow' (progressive
resizing): images of 16 pixels for 40 % of the run, of 24 until 70 %; 0.56 of the FLOPs. 'small': a smaller model
and one epoch, a minute or two of one core.

Needs CIFAR-10 prepared as array_record for TFDS (README, "Your data").

Target: cpu:1
"""

from vit_jax import recipes

_OPTIONS = {
  'augment': {'data.augment': 'light2'},
  'grow': {'data.progressive_resizing': (('40%', 16), ('70%', 24))},
}


def get_config(options: str = ''):
  return recipes.changed_cifar10('cifar10_scratch.py', options, _OPTIONS)
