"""Few labels after masked patch prediction, after supervised pre-training, and alone (the paper's section 4.6).

python -m vit_jax.study masked --workdir=runs/masked

Pre-training on nine tenths of CIFAR-10's training images, without their labels or with them, 10 epochs; then the
other 5,000 images with labels. Patches of 8 pixels, one to five minutes of one core a run. The paper, on JFT and
ImageNet: masked prediction gains 2 points, supervised pre-training 6.
"""

from vit_jax.study.definition import Study, Variant

_SIZES = {'model.width': 64, 'model.mlp_dim': 192, 'model.depth': 4, 'model.patch': 8}
_PRETRAINING = {**_SIZES, 'data.split': 'train[10%:]', 'total': '450000 examples'}
_LABELLED = {**_SIZES, 'data.split': 'train[:10%]', 'total': '100000 examples', 'checkpoint.every': '10%'}


def get_study() -> Study:
  return Study(
    'Masked patch prediction: 5,000 labelled images of CIFAR-10',
    {
      'masked': Variant('masked_patch:cifar10', _PRETRAINING, compared=False),
      'supervised': Variant('cifar10_scratch', _PRETRAINING, compared=False),
      'after_masked': Variant('cifar10_scratch', _LABELLED, start='masked', published='79.9 %'),
      'after_supervised': Variant(
        'cifar10_scratch', _LABELLED, start='supervised', published='4 points more'
      ),
      'scratch': Variant('cifar10_scratch', _LABELLED, published='2 points less'),
    },
  )
