"""Cross-validation of a config: its accuracy on all your images, each measured by a model that has not seen it.

python -m vit_jax.study kfold --workdir=runs/kfold
python -m vit_jax.study 'kfold:folder:/photos' --workdir=runs/kfold_photos
python -m vit_jax.study 'kfold:10,finetune:hf:google/vit-base-patch16-224,folder:/photos' --workdir=runs/kfold_tuned

The argument is a config as `vit_jax train --config` takes it, with a number of folds (5) and a comma before it. The
table has the accuracy of all folds together, with its 95 % interval, and that of each. A study of your own with
`folds=True` compares several configs so. Without an argument: the digits' 1,437 training images by
configs/quickstart.py, a minute a fold.
"""

import re

from vit_jax.config import from_config_dict
from vit_jax.evaluation.classification import ClassificationEvaluatorConfig
from vit_jax.foundation.errors import UserError
from vit_jax.options import config_files
from vit_jax.study.definition import Study, Variant


def get_study(argument: str = 'quickstart') -> Study:
  match = re.fullmatch(r'(?:(\d+),)?(.+)', argument)
  folds, config = (int(match[1] or 5), match[2]) if match else (5, argument)
  if folds < 2:
    raise UserError(f'Cross-validation needs two folds or more, and the study is given {folds}.')
  evaluators = from_config_dict(config_files.load(config)).evaluators
  names = [
    name
    for name, evaluator in evaluators.items()
    if isinstance(evaluator, ClassificationEvaluatorConfig) and evaluator.source is None
  ]
  if not names:
    raise UserError(f'The config {config} has no evaluator of accuracy on its own data; give it one.')
  options = {f'evaluators.{names[0]}.split': 'val', f'evaluators.{names[0]}.every': '100%'}
  return Study(
    f'Cross-validation of {config} in {folds} folds',
    {'all': Variant(config, options)},
    seeds=tuple(range(folds)),
    metric=f'{names[0]}/accuracy',
    folds=True,
  )
