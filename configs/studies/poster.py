"""A student poster's four models: plain, with locality, with images that grow, with both; and our best in its time.

python -m vit_jax.study poster --workdir=runs/poster

The four: 40 epochs of CIFAR-10 with patches of 8 pixels, so that a run takes ten to thirty minutes of one core. The
poster: plain 0.63 in 27 minutes and both 0.71 in 33, on a GPU; it does not give the other two. 'best': what we found to
learn most in little more than that of one core: patches of 4, fixed positions, two heads, a larger rate, 26 epochs.
"""

from vit_jax.study.definition import Study, Variant

_OPTIONS = {'model.patch': 8, 'total': '40 epochs'}
_BEST = {
  'model.patch': 4,
  'model.position': 'sincos2d',
  'model.heads': 2,
  'schedule.learning_rate': 4e-3,
  'total': '26 epochs',
}
_PUBLISHED = {'plain': '63 %, 27 min', 'locality,grow': '71 %, 33 min'}


def get_study() -> Study:
  variants = {}
  for words in ('plain', 'locality', 'grow', 'locality,grow'):
    name = words.replace(',', '_')
    variants[name] = Variant(f'locality:{words},small', _OPTIONS, published=_PUBLISHED.get(words, ''))
  variants['best'] = Variant('locality:locality,grow,small', _BEST)
  return Study('The poster: locality and growing images on CIFAR-10', variants)
