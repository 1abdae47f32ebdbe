"""Few labels after MAE, after masked patch prediction and alone, with about the same processor time for each.

python -m vit_jax.study mae --workdir=runs/mae_study

Scikit-learn's digits and the model of configs/quickstart.py: pre-training on all 1,437 training images without labels,
then the labels of a tenth of them. An image takes 381 µs of processor time in a step of MAE, 909 in one of masked patch
prediction and 692 in one on labels (AMD EPYC, 60 steps); lengths are chosen so that the three ways take as long.
"""

from vit_jax.study.definition import Study, Variant

_FEW = {'evaluators.test.every': '100%', 'data.split': 'train[:10%]', 'batch_size': 64}
_PRETRAINING = {
  'model.pool': 'none',
  'evaluators.test.type': 'fewshot',
  'evaluators.test.pool': 'gap',
  'evaluators.test.every': '100%',
}
_MASKED = {**_PRETRAINING, 'model.mask_token': True, 'objective.name': 'masked_patches', 'total': '20 epochs'}
_MAE = {
  **_PRETRAINING,
  'model.name': 'mae',
  'model.class_token': False,
  'model.decoder_width': 32,
  'model.decoder_depth': 2,
  'model.decoder_heads': 2,
  'objective.name': 'mae',
  'objective.label_smoothing': None,
  'optimizer.lr_multipliers': (),
  'total': '48 epochs',
}


def get_study() -> Study:
  return Study(
    'MAE and masked patch prediction: 143 labelled digits',
    {
      'mae': Variant('quickstart', _MAE, compared=False),
      'masked': Variant('quickstart', _MASKED, compared=False),
      'after_mae': Variant('quickstart', {**_FEW, 'total': '12000 examples'}, start='mae'),
      'after_masked': Variant('quickstart', {**_FEW, 'total': '12000 examples'}, start='masked'),
      'scratch': Variant('quickstart', {**_FEW, 'total': '49700 examples'}),
    },
  )
