"""Class token and mean of the tokens at three learning rates (the paper's appendix D.3, figure 9).

python -m vit_jax.study pooling --workdir=runs/pooling

The paper: at 8e-4 the mean performs very poorly, at 3e-4 as well as the class token. 1.5e-3 is the rate of
`recipes.cifar10`. 16 patches of 8 pixels, 40 epochs of CIFAR-10: configs/ablations/pooling.py.
"""

from vit_jax.study.definition import Study, Variant


def get_study() -> Study:
  options = {'model.patch': 8, 'total': '40 epochs'}
  variants = {}
  for pool in ('token', 'gap'):
    for rate in (3e-4, 8e-4, 1.5e-3):
      own = {**options, 'schedule.learning_rate': rate}
      variants[f'{pool}_{rate:g}'] = Variant(f'pooling:{pool},small', own)
  return Study('Pooling and learning rate on CIFAR-10, 40 epochs', variants)
