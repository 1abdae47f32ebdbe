"""Attention along rows and columns instead of over all tokens (the paper's appendix D.6, figure 13).

python -m vit_jax.study axial --workdir=runs/axial

The small model on 64 patches of 4 pixels, 20 epochs of CIFAR-10. Four layers of a row and a column block have twice the
parameters of four full ones; two have as many.
"""

from vit_jax.study.definition import Study, Variant


def get_study() -> Study:
  options = {'total': '20 epochs'}
  variants = {
    'full': Variant('axial:full,small', options),
    'axial': Variant('axial:axial,small', options),
    'axial_half': Variant('axial:axial,small', {**options, 'model.depth': 2}),
  }
  return Study('Axial against full attention on CIFAR-10, 20 epochs', variants)
