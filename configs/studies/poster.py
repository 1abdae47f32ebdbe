"""A student poster's four models: plain, with locality, with images that grow, with both; 40 epochs of CIFAR-10.

python -m vit_jax.study poster --workdir=runs/poster

Patches of 8 pixels, so that a run takes ten to thirty minutes of one core. The poster: plain 0.63 in 27 minutes and
both 0.71 in 33, on a GPU; it does not give the other two.
"""

from vit_jax.study.definition import Study, Variant

_OPTIONS = {'model.patch': 8, 'total': '40 epochs'}
_PUBLISHED = {'plain': '63 %, 27 min', 'locality,grow': '71 %, 33 min'}


def get_study() -> Study:
  variants = {}
  for words in ('plain', 'locality', 'grow', 'locality,grow'):
    name = words.replace(',', '_')
    variants[name] = Variant(f'locality:{words},small', _OPTIONS, published=_PUBLISHED.get(words, ''))
  return Study('The poster: locality and growing images on CIFAR-10, 40 epochs', variants)
