"""ViT, hybrid and ResNet of equal FLOPs on more and more images (the paper's section 4.3, figures 3 and 4).

python -m vit_jax.study data --workdir=runs/data
python -m vit_jax.study data:longer --workdir=runs/data_longer

1,000 to 50,000 images of CIFAR-10, as many of each class, 100,000 examples of training each; the seed chooses the
images too. Images are shrunk to 16 pixels, 16 tokens of 4, so that all runs take an hour of one core; hybrid and
ResNet have 1.00 and 0.95 times the FLOPs of the ViT. 'longer': ViT and ResNet on 5,000 and 50,000 images, a million
examples each, which is 20 epochs of the latter. The paper, on up to 300 million images: with little data ResNets
are ahead, with much the Vision Transformer.
"""

from vit_jax.study.definition import Study, Variant, chosen

# Family -> config, its own options.
_FAMILIES = {
  'vit': ('resnet:vit,small', {}),
  'hybrid': ('hybrid:hybrid,small', {}),
  'resnet': ('resnet:resnet,small', {'model.blocks': (2, 3, 2)}),
}

# Families, numbers of images, and how long.
_CHOICES = {
  'all': (tuple(_FAMILIES), (1_000, 5_000, 10_000, 50_000), '100000 examples'),
  'longer': (('vit', 'resnet'), (5_000, 50_000), '1000000 examples'),
}


def get_study(choice: str = 'all') -> Study:
  families, numbers, total = chosen(choice, _CHOICES)
  common = {'data.image_size': (16, 16), 'data.padding': 2, 'total': total, 'evaluators.test.every': '50%'}
  variants = {}
  for images in numbers:
    for family in families:
      config, own = _FAMILIES[family]
      options = {**common, **own, 'data.max_per_class': images // 10}
      variants[f'{family}_{images}'] = Variant(config, options, line=family, at=images)
  return Study(f'Model families by the number of images, {total}', variants, axis='training images')
