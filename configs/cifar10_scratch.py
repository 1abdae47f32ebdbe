"""CIFAR-10 from scratch with a small Vision Transformer, on a laptop or one GPU.

python -m vit_jax.main --config=configs/cifar10_scratch.py --workdir=runs/cifar10
python -m vit_jax.main --config=configs/cifar10_scratch.py:augment,grow --workdir=runs/cifar10_better
python -m vit_jax.main --config=configs/cifar10_scratch.py --workdir=runs/short --config.total='3 epochs'

'augment': RandAugment and mixup beside the random crop and the mirroring; for long runs. 'grow': images of 16
pixels for 40 % of the run, of 24 until 70 %; 0.56 of the FLOPs.

Needs CIFAR-10 prepared as array_record for TFDS (README, "Your data").

Target: cpu:1
"""

import dataclasses

from vit_jax.config import (
  Checkpoint,
  Config,
  Data,
  Evaluator,
  Loss,
  Model,
  Optimizer,
  Schedule,
  to_config_dict,
)
from vit_jax.errors import UserError

_OPTIONS = {
  'augment': {'augment': 'light2'},
  'grow': {'grow': (('40%', 16), ('70%', 24))},
}


def get_config(options: str = ''):
  data = Data(source='tfds:cifar10', image_size=(32, 32), crop='random', padding=4)
  for option in filter(None, options.split(',')):
    if option not in _OPTIONS:
      raise UserError(f'configs/cifar10_scratch.py has no {option!r}; choose from {", ".join(_OPTIONS)}.')
    data = dataclasses.replace(data, **_OPTIONS[option])
  return to_config_dict(
    Config(
      total='40 epochs',
      batch_size=128,
      model=Model(variant='custom', patch=4, width=128, mlp_dim=384, depth=6, heads=4, pool='gap'),
      data=data,
      evaluators={'test': Evaluator(split='test')},
      loss=Loss(label_smoothing=0.1),
      optimizer=Optimizer(weight_decay=0.05, clip_norm=1.0),
      schedule=Schedule(learning_rate=1.5e-3, warmup='10%', decay='cosine'),
      checkpoint=Checkpoint(best='test/accuracy'),
    )
  )
