"""CIFAR-10 from scratch with a small Vision Transformer, on a laptop or one GPU.

python -m vit_jax.main --config=configs/cifar10_scratch.py --workdir=runs/cifar10
python -m vit_jax.main --config=configs/cifar10_scratch.py:augment,grow --workdir=runs/cifar10_better
python -m vit_jax.main --config=configs/cifar10_scratch.py --workdir=runs/short --config.total='3 epochs'

'augment': RandAugment and mixup beside the random crop and the mirroring; for long runs. 'grow' (progressive
resizing): images of 16 pixels for 40 % of the run, of 24 until 70 %; 0.56 of the FLOPs.

Needs CIFAR-10 prepared as array_record for TFDS (README, "Your data").

Target: cpu:1
"""

import dataclasses

from vit_jax import recipes
from vit_jax.config import to_config_dict
from vit_jax.errors import UserError

_OPTIONS = {
  'augment': {'augment': 'light2'},
  'grow': {'progressive_resizing': (('40%', 16), ('70%', 24))},
}


def get_config(options: str = ''):
  config = recipes.cifar10()
  for option in filter(None, options.split(',')):
    if option not in _OPTIONS:
      raise UserError(f'configs/cifar10_scratch.py has no {option!r}; choose from {", ".join(_OPTIONS)}.')
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **_OPTIONS[option]))
  return to_config_dict(config)
