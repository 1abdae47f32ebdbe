"""Self-training in rounds (Noisy Student, arXiv 1911.04252), with a tenth of the labels.

python -m vit_jax.study selftraining --workdir=runs/selftraining
python -m vit_jax.study selftraining:digits --workdir=runs/selftraining_digits

A teacher learns from the labels alone. It labels the other images, and a student learns from both, with noise; the
student labels them anew for the next, larger one. 'of_average': the same rounds, where the average of all seeds
labels instead of one. 'noisy' has the student's noise and length, and no other images.
All are small ViTs; stronger noise (data.augment 'light2') is more than so small a model bears. What they found:
docs/findings.md.
CIFAR-10: 5,000 labels and 45,000 images without; nine to twenty minutes of one core a run. 'digits', with locality: a
twentieth, 72 labels and 1,365 images without; a minute a run.
Published (table 2; ImageNet and 300 million images): EfficientNet-L2 from 85.5 % to 88.4 %, in three rounds.
"""

import functools

from vit_jax.selftrain.choosing import Choice
from vit_jax.study.definition import Study, Unlabelled, Variant, chosen

_EVERY = {'evaluators.test.every': '25%', 'checkpoint.every': '10%'}
_CIFAR10 = {'model.patch': 8, 'data.split': 'train[:10%]', 'total': '600000 examples', **_EVERY}
_DIGITS = {
  'model.mlp': 'local',
  'data.split': 'train[:5%]',
  'total': '30000 examples',
  'batch_size': 64,
}
# The first teacher's config and options, the images without labels, and the number of examples that students see.
_ROUNDS = {
  'cifar10': ('position:sincos2d,gap,small', _CIFAR10, 'tfds:cifar10:train[10%:]', '1000000 examples'),
  'digits': ('quickstart', {**_DIGITS, **_EVERY}, 'digits:train[5%:]', '50000 examples'),
}
_LARGER = {'model.width': 96, 'model.mlp_dim': 288}


def get_study(data: str = 'cifar10') -> Study:
  config, options, images, total = chosen(data, _ROUNDS)
  unlabelled = Unlabelled(images, Choice(confidence=0.3), weight=3.0)
  noisy = {**options, 'total': total, 'model.stochastic_depth': 0.1}
  variants = {'teacher': Variant(config, options), 'noisy': Variant(config, noisy)}
  for averaged in (False, True):
    end = '_of_average' if averaged else ''
    learning = functools.partial(Variant, config, averaged=averaged, unlabelled=unlabelled)
    variants[f'student{end}'] = learning(noisy, teacher='teacher')
    variants[f'student_of_student{end}'] = learning({**noisy, **_LARGER}, teacher=f'student{end}')
  return Study(f'Self-training on {data} with few labels', variants)
