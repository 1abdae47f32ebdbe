"""How wide the MLPs are (the paper's appendix D.2 and figure 8).

python -m vit_jax.main --config=configs/ablations/mlp.py:768 --workdir=runs/mlp_768
python -m vit_jax.main --config=configs/ablations/mlp.py:96,small --workdir=runs/mlp_96_small

The number is config.model.mlp_dim; that of `recipes.cifar10` is 384. 'small': a smaller model and one epoch,
a minute or two of one core.

Published (arXiv 2010.11929, appendix D.2 and figure 8: curves of 5-shot ImageNet accuracy against compute, no
table; all from 8 layers, D = 1024, MLPs of 2048 and patches of 32): one of the curves; of it alone the text
says nothing, of all dimensions that scaling them in proportion improves robustly. Here on CIFAR-10 from
scratch (prepared for TFDS: README, "Your data").

Target: cpu:1
"""

from vit_jax import recipes

_OPTIONS = {str(hidden): {'model.mlp_dim': hidden} for hidden in (96, 192, 384, 768, 1536)}


def get_config(arguments: str = '384'):
  return recipes.ablation('mlp', arguments, _OPTIONS)
