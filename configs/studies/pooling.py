"""Class token and mean of the tokens at three learning rates (the paper's appendix D.3, figure 9).

python -m vit_jax.study pooling --workdir=runs/pooling
python -m vit_jax.study pooling:digits --workdir=runs/pooling_digits

The paper: at 8e-4 the mean performs very poorly, at 3e-4 as well as the class token. 1.5e-3 is the rate of
`recipes.cifar10`. 16 patches of 8 pixels, 40 epochs of CIFAR-10: configs/ablations/pooling.py. 'digits': the model of
configs/quickstart.py, whose rate is 2e-3, and 40 epochs of scikit-learn's digits, a minute a run.
"""

from vit_jax.study.definition import Study, Variant, chosen

_RATES = {'cifar10': (3e-4, 8e-4, 1.5e-3), 'digits': (5e-4, 2e-3, 8e-3)}


def get_study(data: str = 'cifar10') -> Study:
  rates = chosen(data, _RATES)
  variants = {}
  for pool in ('token', 'gap'):
    for rate in rates:
      options = {'total': '40 epochs', 'schedule.learning_rate': rate}
      if data == 'digits':
        variant = Variant('quickstart', {**options, 'model.pool': pool})
      else:
        variant = Variant(f'pooling:{pool},small', {**options, 'model.patch': 8})
      variants[f'{pool}_{rate:g}'] = variant
  return Study(f'Pooling and learning rate on {data}, 40 epochs', variants)
