"""Attention along rows and columns instead of over all tokens (the paper's appendix D.6 and figure 13).

python -m vit_jax.main --config=configs/ablations/axial.py:axial --workdir=runs/axial
python -m vit_jax.main --config=configs/ablations/axial.py:axial,patch2,small --workdir=runs/axial_small

'full': attention over all tokens; 'axial': each block becomes a row block and a column block, each with its
MLP, so that the parameters of the encoder double. 'patch2': patches of 2 pixels, 256 tokens instead of 64.
'small': a smaller model and one epoch, a few minutes of one core. The head reads the mean of the tokens.

Published (arXiv 2010.11929, appendix D.6; figure 13 has curves of 5-shot ImageNet accuracy after JFT, no
table): Axial-ViT-B/32 and -B/16 do better than their ViT-B counterparts, at the cost of more compute. Here on
CIFAR-10 from scratch (prepared for TFDS: README, "Your data"); FLOPs and memory: benchmarks/RESULTS.md.

Target: cpu:1
"""

from vit_jax import recipes

_OPTIONS = {'full': {}, 'axial': {'model.axial': True}, 'patch2': {'model.patch': 2}}


def get_config(arguments: str = 'axial'):
  return recipes.changed_cifar10('ablations/axial.py', arguments, _OPTIONS)
