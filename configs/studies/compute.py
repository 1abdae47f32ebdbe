"""Accuracy against training compute: three sizes, three lengths, three families (the paper's figure 5).

python -m vit_jax.study compute --workdir=runs/compute

CIFAR-10 from scratch, 5, 10 and 20 epochs. The figure is over the counted FLOPs of training, as the paper's is over
those of pre-training.
"""

from vit_jax.study.definition import Study, Variant

# Family -> size -> (config, options).
_MODELS = {
  'vit': {
    'tiny': ('resnet:vit,small', {'model.width': 32, 'model.mlp_dim': 96}),
    'small': ('resnet:vit,small', {}),
    'base': ('resnet:vit', {}),
  },
  'hybrid': {
    'tiny': ('hybrid:hybrid,small', {'model.width': 32, 'model.mlp_dim': 96}),
    'small': ('hybrid:hybrid,small', {}),
    'base': ('hybrid:hybrid', {}),
  },
  'resnet': {
    'tiny': ('resnet:resnet,small', {'model.blocks': (1, 1, 1, 1)}),
    'small': ('resnet:resnet,small', {}),
    'base': ('resnet:resnet', {}),
  },
}


def get_study() -> Study:
  variants = {}
  for epochs in (5, 10, 20):
    for family, sizes in _MODELS.items():
      for size, (config, options) in sizes.items():
        own = {**options, 'total': f'{epochs} epochs'}
        variants[f'{family}_{size}_{epochs}'] = Variant(config, own, line=family)
  return Study('ViT, hybrid and ResNet by compute on CIFAR-10', variants, axis='FLOPs of training')
