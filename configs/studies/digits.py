"""The smallest of the paper's claims on handwritten digits, in minutes: the nightly tests watch over them.

python -m vit_jax.study digits --workdir=runs/digits

Scikit-learn's digits of 8 × 8 pixels and the model of configs/quickstart.py, so there is nothing to download. Positions
with four patches a side; locality; and few labels after masked prediction, after supervised pre-training, and alone.
docs/findings.md has the same claims on photographs, tests/study/test_claims.py the bounds.
"""

from vit_jax.models.parts.positions import POSITIONS
from vit_jax.study.definition import Study, Variant

_AT_THE_END = {'evaluators.test.every': '100%'}
_POSITIONS = {**_AT_THE_END, 'total': '20 epochs', 'optimizer.lr_multipliers': ()}
_FEW = {**_AT_THE_END, 'data.split': 'train[:5%]', 'total': '6000 examples', 'batch_size': 64}
_OTHERS = {**_AT_THE_END, 'data.split': 'train[5%:]', 'total': '60 epochs'}
_MASKED = {
  **_OTHERS,
  'model.pool': 'none',
  'model.mask_token': True,
  'objective.name': 'masked_patches',
  'evaluators.test.type': 'fewshot',
  'evaluators.test.pool': 'gap',
}


def get_study() -> Study:
  variants = {}
  for position in POSITIONS.names():
    variants[position] = Variant('quickstart', {**_POSITIONS, 'model.position': position})
  variants['locality'] = Variant('quickstart', {**_POSITIONS, 'model.mlp': 'local'})
  variants['masked'] = Variant('quickstart', _MASKED, compared=False)
  variants['supervised'] = Variant('quickstart', _OTHERS, compared=False)
  variants['few_after_masked'] = Variant('quickstart', _FEW, start='masked')
  variants['few_after_supervised'] = Variant('quickstart', _FEW, start='supervised')
  variants['few_alone'] = Variant('quickstart', _FEW)
  return Study('Claims of the paper on digits', variants)
