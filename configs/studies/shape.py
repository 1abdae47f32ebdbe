"""One dimension of the model at a time, against what it costs (the paper's appendix D.2, figure 8).

python -m vit_jax.study shape --workdir=runs/shape
python -m vit_jax.study shape:longer --workdir=runs/shape_longer
python -m vit_jax.study shape:digits --workdir=runs/shape_digits

From the small model with patches of 8 pixels: depth, width, MLP and patches, 4 epochs of CIFAR-10. 'longer': depth and
width alone, 12 epochs, two hours of one core. 'digits': from the model of configs/quickstart.py, with patches of 2
pixels and MLPs of 256, all of them together and heads too, 20 epochs of scikit-learn's digits, half a minute a run. The
figure has a line for each over the counted FLOPs: what lies above another learns more for as many. Heads cost no FLOPs.
"""

from vit_jax.study.definition import Study, Variant, chosen

# Line -> the options that differ from width 64, 4 blocks, 4 heads, MLPs of 192 or 256.
_CHANGES = {
  'depth': lambda blocks: {'model.depth': blocks},
  'width': lambda width: {'model.width': width},
  'mlp': lambda hidden: {'model.mlp_dim': hidden},
  'all': lambda width: {'model.width': width, 'model.mlp_dim': 3 * width, 'model.depth': width // 16},
  'heads': lambda heads: {'model.heads': heads},
  'patch': lambda pixels: {'model.patch': pixels},
}
# The model, and the sizes of each line.
_CHOICES = {
  'cifar10': (
    Variant('locality:plain,small', {'model.patch': 8, 'total': '4 epochs'}, line='base'),
    {'depth': (2, 8), 'width': (32, 128), 'mlp': (64, 768), 'patch': (16,)},
  ),
  'longer': (
    Variant('locality:plain,small', {'model.patch': 8, 'total': '12 epochs'}, line='base'),
    {'depth': (2, 8), 'width': (32, 128)},
  ),
  'digits': (
    Variant('quickstart', {'model.patch': 2, 'total': '20 epochs'}, line='base'),
    {
      'depth': (1, 2, 8, 16),
      'width': (32, 96, 128, 192),
      'mlp': (64, 384, 768, 1536),
      'all': (48, 80, 96),
      'heads': (1, 2, 8, 16),
      'patch': (4, 1),
    },
  ),
}


def get_study(choice: str = 'cifar10') -> Study:
  base, lines = chosen(choice, _CHOICES)
  variants = {'base': base}
  for line, sizes in lines.items():
    for size in sizes:
      options = {**base.options, **_CHANGES[line](size)}
      variants[f'{line}_{size}'] = Variant(base.config, options, line=line)
  title = f'Shapes of the model ({choice}), {base.options["total"]}'
  return Study(title, variants, axis='FLOPs of training')
