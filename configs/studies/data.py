"""ViT, hybrid and ResNet of equal FLOPs on more and more images (the paper's section 4.3, figures 3 and 4).

python -m vit_jax.study data --workdir=runs/data

1,000 to 50,000 images of CIFAR-10, as many of each class, 100,000 examples of training each; the seed chooses the
images too. Images are shrunk to 16 pixels, 16 tokens of 4, so that all runs take an hour of one core; hybrid and
ResNet have 1.00 and 0.95 times the FLOPs of the ViT. The paper, on up to 300 million images: with little data ResNets
are ahead, with much the Vision Transformer.
"""

from vit_jax.study.definition import Study, Variant

# Family -> config, its own options.
_FAMILIES = {
  'vit': ('resnet:vit,small', {}),
  'hybrid': ('hybrid:hybrid,small', {}),
  'resnet': ('resnet:resnet,small', {'model.blocks': (2, 3, 2)}),
}


def get_study() -> Study:
  common = {
    'data.image_size': (16, 16),
    'data.padding': 2,
    'total': '100000 examples',
    'evaluators.test.every': '50%',
  }
  variants = {}
  for images in (1_000, 5_000, 10_000, 50_000):
    for family, (config, own) in _FAMILIES.items():
      options = {**common, **own, 'data.max_per_class': images // 10}
      variants[f'{family}_{images}'] = Variant(config, options, line=family, at=images)
  return Study('ViT, hybrid and ResNet by the number of images', variants, axis='training images')
