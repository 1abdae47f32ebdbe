"""Fine-tuning at a higher resolution than that of the training before (the paper's section 3.2).

python -m vit_jax.study resolution --workdir=runs/resolution

The small model with patches of 8 pixels, 20 epochs of CIFAR-10 at 32 pixels; then 3 gentle ones at 32, 48 and 64. The
images themselves have 32 pixels; what grows is the number of patches.
"""

from vit_jax.study.definition import Study, Variant


def get_study() -> Study:
  variants = {
    'before': Variant('locality:plain,small', {'model.patch': 8, 'total': '20 epochs'}),
  }
  for side in (32, 48, 64):
    options = {
      'model.patch': 8,
      'total': '3 epochs',
      'schedule.learning_rate': 1e-4,
      'init.reinitialise': (),
      'data.image_size': (side, side),
      'data.resize': side,
      'data.padding': side // 8,
      'evaluators.test.crop': 'resize',
    }
    variants[f'then_{side}'] = Variant('locality:plain,small', options, start='before')
  return Study('Fine-tuning on CIFAR-10 at a higher resolution', variants)
