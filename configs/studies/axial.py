"""Attention along rows and columns instead of over all tokens (the paper's appendix D.6, figure 13).

python -m vit_jax.study axial --workdir=runs/axial
python -m vit_jax.study axial:digits --workdir=runs/axial_digits

The small model on 16 patches of 8 pixels, 10 epochs of CIFAR-10. Four layers of a row and a column block have twice the
parameters of four full ones; two have as many. 'digits': the model of configs/quickstart.py on 16 patches, 40 epochs of
scikit-learn's digits, a minute a run.
"""

from vit_jax.study.definition import Study, Variant, chosen

_FULL = {
  'cifar10': Variant('axial:full,small', {'model.patch': 8, 'total': '10 epochs'}),
  'digits': Variant('quickstart', {'total': '40 epochs'}),
}


def get_study(data: str = 'cifar10') -> Study:
  full = chosen(data, _FULL)
  axial = {**full.options, 'model.axial': True}
  variants = {
    'full': full,
    'axial': Variant(full.config, axial),
    'axial_half': Variant(full.config, {**axial, 'model.depth': 2}),
  }
  return Study(f'Axial against full attention on {data}, {full.options["total"]}', variants)
