"""How many heads attention has, at the same width.

python -m vit_jax.main --config=configs/ablations/heads.py:8 --workdir=runs/heads_8
python -m vit_jax.main --config=configs/ablations/heads.py:1,small --workdir=runs/heads_1_small

The number is config.model.heads; that of `recipes.cifar10` is 4. FLOPs and parameters are the same for all.
'small': a smaller model and one epoch, a minute or two of one core.

Published: the paper (arXiv 2010.11929) has no such comparison; all its models but H/14 have heads of 64
channels (table 1). 'Attention Is All You Need' (arXiv 1706.03762, table 3, A), in translation: one head is
0.9 BLEU worse than the best number of heads, and too many are worse too. Here on CIFAR-10 from scratch
(prepared for TFDS: README, "Your data").

Target: cpu:1
"""

from vit_jax import recipes

_OPTIONS = {str(heads): {'model.heads': heads} for heads in (1, 2, 4, 8, 16)}


def get_config(arguments: str = '4'):
  return recipes.changed_cifar10('ablations/heads.py', arguments, _OPTIONS)
