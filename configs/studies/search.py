"""A search of the rate, the decay and the dropout of the quickstart's model on digits, by successive halving.

python -m vit_jax.study search --workdir=runs/search
python -m vit_jax.study search:grid --workdir=runs/grid

A hundred draws of 10 epochs, of which two thirds stop after the first and most others after the third; beside it a
grid of nine rates. Machines with a shared folder share the draws by the same command.
"""

from vit_jax.study.definition import Search, Variant, choice, chosen, log, uniform

_VARIANT = Variant('quickstart', {'total': '10 epochs', 'evaluators.test.every': '1 epochs'})
_SEARCHES = {
  'halving': Search(
    'Rate, decay and dropout on digits',
    _VARIANT,
    {
      'schedule.learning_rate': log(1e-4, 3e-2),
      'optimizer.weight_decay': log(1e-4, 0.3),
      'model.dropout': uniform(0.0, 0.2),
    },
    trials=100,
    halving=3,
  ),
  'grid': Search(
    'Rates on digits',
    _VARIANT,
    {'schedule.learning_rate': choice(1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 1.28e-2, 2.56e-2)},
    trials=9,
    sampler='grid',
  ),
}


def get_study(kind: str = 'halving') -> Search:
  return chosen(kind, _SEARCHES)
