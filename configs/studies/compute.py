"""Accuracy against training compute: two sizes, three lengths, three families (the paper's figure 5).

python -m vit_jax.study compute --workdir=runs/compute

CIFAR-10 from scratch, images shrunk to 16 pixels, so that all runs take two hours and a half of one core; two sizes of
each family, 1, 3 and 10 epochs. The figure has a line for each model over the counted FLOPs of training, as the paper's
is over those of pre-training.
"""

from vit_jax.study.definition import Study, Variant

_TINY = {'model.width': 32, 'model.mlp_dim': 96}
# (Family, size) -> (config, options).
_MODELS = {
  ('vit', 'tiny'): ('resnet:vit,small', _TINY),
  ('vit', 'small'): ('resnet:vit,small', {}),
  ('hybrid', 'tiny'): ('hybrid:hybrid,small', _TINY),
  ('hybrid', 'small'): ('hybrid:hybrid,small', {}),
  ('resnet', 'tiny'): ('resnet:resnet,small', {'model.blocks': (1, 1)}),
  ('resnet', 'small'): ('resnet:resnet,small', {'model.blocks': (2, 3, 2)}),
}


def get_study() -> Study:
  common = {'data.image_size': (16, 16), 'data.padding': 2}
  variants = {}
  for epochs in (1, 3, 10):
    for (family, size), (config, own) in _MODELS.items():
      options = {**common, **own, 'total': f'{epochs} epochs'}
      variants[f'{family}_{size}_{epochs}'] = Variant(config, options, line=f'{family}, {size}')
  return Study('ViT, hybrid and ResNet by compute on CIFAR-10', variants, axis='FLOPs of training')
