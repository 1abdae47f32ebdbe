"""Six optimizers on CIFAR-10 in equal processor time: Adam, Muon, LAMB, Adafactor, schedule-free AdamW, SAM.

python -m vit_jax.study optimizers:rates --workdir=runs/optimizers_rates
python -m vit_jax.study optimizers --workdir=runs/optimizers

'rates' tries two settings of each by a seed of its own. The better of the two stands first, and is what the other
command trains by three more seeds. The model has two blocks of the small one of configs/cifar10_scratch.py, and patches
of 8 pixels. Decay of weights, clipping and warmup are the same for all; all but the schedule-free one end in a cosine.
An image takes 167 µs of processor time in a step of Adam, 184 of Muon, 169 of LAMB, 171 of Adafactor, 169 of
schedule-free AdamW and 323 of SAM (AMD EPYC, the least of six times 8 steps): the numbers of images make up for it.
"""

from vit_jax.study.definition import Study, Variant, chosen

# Optimizer -> images it is trained on.
_EXAMPLES = {
  'adam': 60_000,
  'muon': 54_000,
  'lamb': 59_000,
  'adafactor': 58_500,
  'schedule_free': 59_000,
  'sam': 31_000,
}
# Optimizer -> (rate, radius of SAM), of which the first is trained by three seeds.
_SETTINGS = {
  'adam': ((3e-3, 0.0), (6e-3, 0.0)),
  'muon': ((1.2e-2, 0.0), (6e-3, 0.0)),
  'lamb': ((2e-2, 0.0), (1e-2, 0.0)),
  'adafactor': ((3e-3, 0.0), (6e-3, 0.0)),
  'schedule_free': ((6e-3, 0.0), (1.2e-2, 0.0)),
  'sam': ((3e-3, 0.05), (6e-3, 0.05)),
}
_SEEDS = {'chosen': (0, 1, 2), 'rates': (3,)}


def get_study(kind: str = 'chosen') -> Study:
  seeds, variants = chosen(kind, _SEEDS), {}
  for name, settings in _SETTINGS.items():
    for rate, radius in settings if kind == 'rates' else settings[:1]:
      options = {
        'model.patch': 8,
        'model.depth': 2,
        'model.unroll': True,
        'total': f'{_EXAMPLES[name]} examples',
        'optimizer.name': 'adam' if name == 'sam' else name,
        'optimizer.sam_radius': radius,
        'schedule.learning_rate': rate,
        'schedule.decay': 'constant' if name == 'schedule_free' else 'cosine',
        'evaluators.test.every': '100%',
      }
      title = f'{name}_{rate:g}' + (f'_{radius:g}' if radius else '')
      variants[name if kind == 'chosen' else title] = Variant('cifar10_scratch:small', options)
  return Study('Optimizers on CIFAR-10 in equal processor time', variants, seeds=seeds)
