"""Fine-tuning at a higher resolution than that of the training before (the paper's section 3.2).

python -m vit_jax.study resolution --workdir=runs/resolution
python -m vit_jax.study resolution:digits --workdir=runs/resolution_digits

The small model with patches of 8 pixels, 20 epochs of CIFAR-10 at 32 pixels; then 3 gentle ones at 32, 48 and 64. The
images themselves have 32 pixels; what grows is the number of patches. 'digits': the model of configs/quickstart.py, 40
epochs of scikit-learn's digits at 8 pixels; then 8 gentle ones at 8, 12 and 16; a minute a run.
"""

from vit_jax.study.definition import Study, Variant, chosen

_BEFORE = {
  'cifar10': Variant('locality:plain,small', {'model.patch': 8, 'total': '20 epochs'}),
  'digits': Variant('quickstart', {'total': '40 epochs'}),
}
# The pixels of a side, and the length.
_THEN = {'cifar10': ((32, 48, 64), '3 epochs'), 'digits': ((8, 12, 16), '8 epochs')}


def get_study(data: str = 'cifar10') -> Study:
  before = chosen(data, _BEFORE)
  sides, total = _THEN[data]
  variants = {'before': before}
  for side in sides:
    options = {
      **before.options,
      'total': total,
      'schedule.learning_rate': 1e-4,
      'init.reinitialise': (),
      'data.image_size': (side, side),
      'data.resize': side,
      'data.padding': side // 8,
      'evaluators.test.crop': 'resize',
    }
    variants[f'then_{side}'] = Variant(before.config, options, start='before')
  return Study(f'Fine-tuning on {data} at a higher resolution', variants)
