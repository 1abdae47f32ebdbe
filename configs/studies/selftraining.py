"""Self-training in rounds (Noisy Student, arXiv 1911.04252) on CIFAR-10 with 5,000 labels and 45,000 images without.

python -m vit_jax.study selftraining --workdir=runs/selftraining

A teacher learns from the labels alone. It labels the other images, and a student learns from both, with noise; the
student labels them anew for the next, larger one. 'noisy' has the student's noise and length, and no other images.
All are small ViTs with locality, which is quick, and long enough to learn 5,000 images by heart: a shorter student only
repeats its teacher, and stronger noise (data.augment 'light2') is more than so small a model bears. A run takes ten to
thirty minutes of one core.
Published (table 2; ImageNet and 300 million images): EfficientNet-L2 from 85.5 % to 88.4 %, in three rounds.
"""

from vit_jax.selftrain.labels import Choice
from vit_jax.study.definition import Study, Unlabelled, Variant

_CONFIG = 'locality:locality,small'
_TEACHER = {
  'model.patch': 8,
  'model.position': 'sincos2d',
  'data.split': 'train[:10%]',
  'total': '600000 examples',
  'evaluators.test.every': '25%',
  'checkpoint.every': '10%',
}
_NOISY = {**_TEACHER, 'total': '1000000 examples', 'model.stochastic_depth': 0.1}
_LARGER = {**_NOISY, 'model.width': 96, 'model.mlp_dim': 288}
_UNLABELLED = Unlabelled('tfds:cifar10:train[10%:]', Choice(confidence=0.3), weight=3.0)


def get_study() -> Study:
  return Study(
    'Self-training on CIFAR-10 with 5,000 labels',
    {
      'teacher': Variant(_CONFIG, _TEACHER),
      'noisy': Variant(_CONFIG, _NOISY),
      'student': Variant(_CONFIG, _NOISY, teacher='teacher', unlabelled=_UNLABELLED),
      'student_of_student': Variant(_CONFIG, _LARGER, teacher='student', unlabelled=_UNLABELLED),
    },
  )
