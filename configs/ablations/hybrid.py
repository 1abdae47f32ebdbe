"""Vision Transformer, hybrid and ResNet of equal FLOPs (the paper's figure 5 and table 6).

python -m vit_jax.main --config=configs/ablations/hybrid.py:hybrid --workdir=runs/hybrid
python -m vit_jax.main --config=configs/ablations/hybrid.py:hybrid,small --workdir=runs/hybrid_small
python -m vit_jax.main --config=configs/ablations/hybrid.py:r50x1,jft --workdir=runs/r50x1

'hybrid': the root and two bottlenecks of a ResNet, then 5 of the 6 blocks of `recipes.cifar10`'s ViT, on as
many tokens; it takes 1.025 times the FLOPs of that ViT. 'small': one bottleneck of half the width, then 3 of
the 4 blocks of the small ViT; 0.966 times its FLOPs. The ViT and the ResNet: configs/ablations/resnet.py.
'NAME,jft': the paper's own recipe (table 3) of R50x1, R50x2, R101x1, R152x1, R152x2, R50+B/16 ('r50+b16') or
R50+L/32 on JFT-300M, which is Google's.

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
from vit_jax.config import (
  CheckpointConfig,
  ClassificationObjective,
  Config,
  DataConfig,
  OptimizerConfig,
  ResNetConfig,
  ScheduleConfig,
  ViTConfig,
  to_config_dict,
)
from vit_jax.errors import UserError

_HYBRID = {'model.stem_blocks': (2,), 'model.stem_width': 64, 'model.patch': 1, 'model.depth': 5}
_SMALL_HYBRID = {'model.stem_blocks': (1,), 'model.stem_width': 32, 'model.patch': 1, 'model.depth': 3}

# Table 3 of the paper, JFT-300M, 7 epochs: variant -> learning rate.
_JFT_RATES = {
  'R50x1': 1e-3,
  'R50x2': 1e-3,
  'R101x1': 8e-4,
  'R152x1': 6e-4,
  'R152x2': 6e-4,
  'R50+B/16': 8e-4,
  'R50+L/32': 2e-4,
}


def get_config(arguments: str = 'hybrid'):
  name, _, source = arguments.partition(',')
  if source == 'jft':
    return to_config_dict(jft(recipes.variant_of(name)))
  hybrid = _SMALL_HYBRID if 'small' in arguments.split(',') else _HYBRID
  return recipes.ablation('hybrid', arguments, {'hybrid': hybrid})


def jft(variant: str) -> Config:
  """The paper, table 3."""
  if variant not in _JFT_RATES:
    raise UserError(
      f'The paper did not train {variant} on JFT-300M, but {", ".join(_JFT_RATES)}; choose one of them.'
    )
  if '/' in variant:
    model = ViTConfig(variant=variant, head_bias=-10.0, dtype='bfloat16')
  else:
    model = ResNetConfig(variant=variant, head_bias=-10.0, dtype='bfloat16')
  return Config(
    total='7 epochs',
    batch_size=4096,
    model=model,
    data=DataConfig(source='tfds:jft_300m', split='train', num_classes=18291, max_labels=32, prefetch=4),
    objective=ClassificationObjective(loss='sigmoid'),
    optimizer=OptimizerConfig(name='adam', b1=0.9, b2=0.999, weight_decay=0.1, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=_JFT_RATES[variant], warmup='10000 steps', decay='linear'),
    checkpoint=CheckpointConfig(every='1000 steps'),
  )
