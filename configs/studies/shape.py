"""One dimension of the model at a time, against what it costs (the paper's appendix D.2, figure 8).

python -m vit_jax.study shape --workdir=runs/shape

From the small model with patches of 8 pixels: depth, width, MLP, patches and all of them together, 20 epochs of
CIFAR-10. The figure has a line for each over the counted FLOPs, so that what is above another does more with as many;
heads cost nothing.
"""

from vit_jax.study.definition import Study, Variant

# Line -> its variants, each the options that differ from width 64, 4 blocks, 4 heads, MLPs of 192, patches of 8.
_LINES = {
  'depth': {str(depth): {'model.depth': depth} for depth in (1, 2, 8, 16)},
  'width': {str(width): {'model.width': width} for width in (32, 96, 128, 192)},
  'mlp': {str(hidden): {'model.mlp_dim': hidden} for hidden in (64, 384, 768, 1536)},
  'patch': {str(patch): {'model.patch': patch} for patch in (16, 4)},
  'all': {
    str(width): {'model.width': width, 'model.mlp_dim': 3 * width, 'model.depth': depth}
    for width, depth in ((48, 3), (80, 5), (96, 6))
  },
  'heads': {str(heads): {'model.heads': heads} for heads in (1, 2, 8, 16)},
}


def get_study() -> Study:
  options = {'model.patch': 8, 'total': '20 epochs'}
  variants = {'base': Variant('locality:plain,small', options, line='base')}
  for line, changes in _LINES.items():
    for size, change in changes.items():
      variants[f'{line}_{size}'] = Variant('locality:plain,small', {**options, **change}, line=line)
  return Study('Shapes of the model on CIFAR-10, 20 epochs', variants, axis='FLOPs of training')
