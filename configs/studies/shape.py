"""One dimension of the model at a time, against what it costs (the paper's appendix D.2, figure 8).

python -m vit_jax.study shape --workdir=runs/shape
python -m vit_jax.study shape:digits --workdir=runs/shape_digits

From the small model with patches of 8 pixels: depth, width, MLP, patches and all of them together, 20 epochs of
CIFAR-10. The figure has a line for each over the counted FLOPs, so that what is above another does more with as many;
heads cost nothing. 'digits': from the model of configs/quickstart.py, with patches of 2 pixels and MLPs of 256, 20
epochs of scikit-learn's digits, half a minute a run.
"""

from vit_jax.study.definition import Study, Variant, chosen

_BASE = {
  'cifar10': Variant('locality:plain,small', {'model.patch': 8, 'total': '20 epochs'}, line='base'),
  'digits': Variant('quickstart', {'model.patch': 2, 'total': '20 epochs'}, line='base'),
}
# Line -> its variants, each the options that differ from width 64, 4 blocks, 4 heads, MLPs of 192 or 256.
_LINES = {
  'depth': {str(depth): {'model.depth': depth} for depth in (1, 2, 8, 16)},
  'width': {str(width): {'model.width': width} for width in (32, 96, 128, 192)},
  'mlp': {str(hidden): {'model.mlp_dim': hidden} for hidden in (64, 384, 768, 1536)},
  'all': {
    str(width): {'model.width': width, 'model.mlp_dim': 3 * width, 'model.depth': depth}
    for width, depth in ((48, 3), (80, 5), (96, 6))
  },
  'heads': {str(heads): {'model.heads': heads} for heads in (1, 2, 8, 16)},
}


def get_study(data: str = 'cifar10') -> Study:
  base = chosen(data, _BASE)
  patch = base.options['model.patch']
  patches = {str(pixels): {'model.patch': pixels} for pixels in (2 * patch, patch // 2)}
  variants = {'base': base}
  for line, changes in (_LINES | {'patch': patches}).items():
    for size, change in changes.items():
      variants[f'{line}_{size}'] = Variant(base.config, {**base.options, **change}, line=line)
  return Study(f'Shapes of the model on {data}, 20 epochs', variants, axis='FLOPs of training')
