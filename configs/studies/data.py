"""ViT, hybrid and ResNet of equal FLOPs on more and more images (the paper's section 4.3, figures 3 and 4).

python -m vit_jax.study data --workdir=runs/data

1,000 to 50,000 images of CIFAR-10, as many of each class, 500,000 examples of training each; the seed chooses the
images too. The paper, on up to 300 million: with little data ResNets are ahead, with much the Vision Transformer.
"""

from vit_jax.study.definition import Study, Variant

_FAMILIES = {'vit': 'resnet:vit,small', 'hybrid': 'hybrid:hybrid,small', 'resnet': 'resnet:resnet,small'}


def get_study() -> Study:
  variants = {}
  for images in (1_000, 5_000, 10_000, 50_000):
    for family, config in _FAMILIES.items():
      options = {'data.max_per_class': images // 10, 'total': '500000 examples'}
      options['evaluators.test.every'] = '25%'
      options['checkpoint.every'] = '10%'
      variants[f'{family}_{images}'] = Variant(config, options, line=family, at=images)
  return Study('ViT, hybrid and ResNet by the number of images', variants, axis='training images')
