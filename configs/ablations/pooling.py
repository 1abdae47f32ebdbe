"""What the head reads, and the learning rate that goes with it (the paper's appendix D.3 and figure 9).

python -m vit_jax.main --config=configs/ablations/pooling.py:gap,3e-4 --workdir=runs/pooling_gap
python -m vit_jax.main --config=configs/ablations/pooling.py:token,8e-4,small --workdir=runs/pooling_small

'token': the class token (the paper's own). 'gap': the mean of all tokens, without a class token. '3e-4' and
'8e-4': the paper's rates; without one that of `recipes.cifar10`, 1.5e-3. 'small': a smaller model and one
epoch, a minute or two of one core.

Published (arXiv 2010.11929, appendix D.3; figure 9 has curves of 5-shot ImageNet accuracy, no table): at the
class token's rate, 8e-4, the mean of the tokens "performed very poorly"; at 3e-4 it is as good as the class
token. Here on CIFAR-10 from scratch (prepared for TFDS: README, "Your data"); the grid of poolings and rates:
configs/studies/pooling.py, and docs/findings.md has what it found.

Target: cpu:1
"""

from vit_jax import recipes

_OPTIONS = {pool: {'model.pool': pool} for pool in ('token', 'gap')}
_OPTIONS |= {rate: {'schedule.learning_rate': float(rate)} for rate in ('3e-4', '8e-4')}


def get_config(arguments: str = 'token'):
  return recipes.changed_cifar10('ablations/pooling.py', arguments, _OPTIONS)
