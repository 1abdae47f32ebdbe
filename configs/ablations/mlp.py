"""How wide the MLPs are (the paper's appendix D.2 and figure 8).

python -m vit_jax.main --config=configs/ablations/mlp.py:768 --workdir=runs/mlp_768
python -m vit_jax.main --config=configs/ablations/mlp.py:96,small --workdir=runs/mlp_96_small

The number is config.model.mlp_dim; that of `recipes.cifar10` is 384. 'small': a smaller model and one epoch,
a minute or two of one core.

Published (as in depth.py): one of the curves; of it alone the text says nothing, of all dimensions that scaling
them in proportion improves robustly. Here on CIFAR-10 from scratch.

Target: cpu:1
"""

from vit_jax import recipes

_OPTIONS = {str(hidden): {'model.mlp_dim': hidden} for hidden in (96, 192, 384, 768, 1536)}


def get_config(arguments: str = '384'):
  return recipes.changed_cifar10('ablations/mlp.py', arguments, _OPTIONS)
