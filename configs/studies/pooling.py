"""Class token and mean of the tokens at three learning rates (the paper's appendix D.3, figure 9).

python -m vit_jax.study pooling --workdir=runs/pooling
python -m vit_jax.study pooling:digits --workdir=runs/pooling_digits

The paper: at 8e-4 the mean performs very poorly, at 3e-4 as well as the class token. 1.5e-3 is the rate of
`recipes.cifar10`. 16 patches of 8 pixels, 20 epochs of CIFAR-10: configs/ablations/pooling.py. 'digits': the model of
configs/quickstart.py, whose rate is 2e-3, and 40 epochs of scikit-learn's digits, a minute a run.
"""

from vit_jax.study.definition import Study, Variant, chosen

# The model, and its rates.
_BASE = {
  'cifar10': (Variant('pooling:token,small', {'model.patch': 8, 'total': '20 epochs'}), (3e-4, 8e-4, 1.5e-3)),
  'digits': (Variant('quickstart', {'total': '40 epochs'}), (5e-4, 2e-3, 8e-3)),
}


def get_study(data: str = 'cifar10') -> Study:
  base, rates = chosen(data, _BASE)
  variants = {}
  for pool in ('token', 'gap'):
    for rate in rates:
      options = {**base.options, 'model.pool': pool, 'schedule.learning_rate': rate}
      variants[f'{pool}_{rate:g}'] = Variant(base.config, options)
  return Study(f'Pooling and learning rate on {data}, {base.options["total"]}', variants)
