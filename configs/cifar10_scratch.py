"""CIFAR-10 from scratch with a small Vision Transformer, on a laptop or one GPU.

python -m vit_jax.main --config=configs/cifar10_scratch.py --workdir=runs/cifar10
python -m vit_jax.main --config=configs/cifar10_scratch.py --workdir=runs/short --config.total='3 epochs'

Needs CIFAR-10 prepared as array_record for TFDS (README, "Your data").
"""

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


def get_config():
  return to_config_dict(
    Config(
      total='40 epochs',
      batch_size=128,
      model=Model(variant='custom', patch=4, width=128, mlp_dim=384, depth=6, heads=4, pool='gap'),
      data=Data(source='tfds:cifar10', image_size=(32, 32), crop='random', padding=4),
      evaluators={'test': Evaluator(split='test')},
      loss=Loss(label_smoothing=0.1),
      optimizer=Optimizer(weight_decay=0.05, clip_norm=1.0),
      schedule=Schedule(learning_rate=1.5e-3, warmup='10%', decay='cosine'),
      checkpoint=Checkpoint(best='test/accuracy'),
    )
  )
