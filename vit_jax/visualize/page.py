"""`index.html`: the pictures of a model with captions. It has no scripts and loads nothing from elsewhere."""

import dataclasses
from collections.abc import Mapping, Sequence
from html import escape

from vit_jax.foundation import web_page
from vit_jax.visualize.model_parts import TITLES, grouped
from vit_jax.visualize.observations import Observation

_PAPER = 'https://arxiv.org/abs/2010.11929'
_ROLLOUT = 'https://arxiv.org/abs/2005.00928'
_DINOV2 = 'https://arxiv.org/abs/2304.07193'

# What one sees; the captions are HTML.
_CAPTIONS = {
  'filters': 'The directions in which the filters that meet the image differ most, from the upper left on '
  '(principal components, as in figure 7, left, of <a href="{paper}">the paper</a>). Each goes from its '
  'smallest number, dark, to its largest, bright; its sign means nothing. Smooth waves, blobs and edges are '
  'learned; noise says that training was short, or that there was none.',
  'positions': 'One small map for each patch: how similar its position embedding is to those of all patches '
  '(cosine; figure 7, centre, of <a href="{paper}">the paper</a>). The bright spot is the patch itself. '
  'Where rows, columns or neighbours are bright too, the model knows what lies beside what.',
  'distances': 'A dot for each head, from the first, dark, to the last, bright: how many pixels lie between '
  'a patch and the patches that it attends to, weighted by attention, as a mean over all patches and '
  '{averaged} (figures 7, right, and 11, appendix D.7, of <a href="{paper}">the paper</a>). Low dots are '
  'heads that look nearby. The dashed line is where a head is that attends to all patches alike. '
  '<a href="distances.csv">The same as numbers</a>.',
  'pca': 'Patches with features alike have colours alike, in all images. Black is the background: one side of the '
  'mean along the first principal component of all patches, to which most patches at the borders belong. The colours '
  'are the first three components of the others (figure 1 of <a href="{dinov2}">DINOv2</a>).',
  'patches': 'How the image is cut: each square becomes a token, row by row from the upper left.{hybrid}',
  'layers': 'Each small square is a token, before the first block and behind each. Tokens alike have colours '
  'alike; every depth has its own colours, so that a colour means nothing across depths.',
  'heads': 'A row for each block, a column for each head: what {attending} attends to. Each map goes from 0 '
  'to its own largest weight.{others}',
  'rollout': 'Attention followed through all blocks: in each the mean of the heads plus the identity, for '
  'the residual connection; then their product (<a href="{rollout}">Abnar and Zuidema</a>; figures 6 and '
  '14, appendix D.8, of <a href="{paper}">the paper</a>). Bright is what {attending} behind the last block '
  'draws on; for which class, it does not say.',
}
_STEPS = (
  'From left to right the steps of training whose checkpoints are kept. From above: the tokens before the first block, '
  'where they are patches and positions alone, then behind each block, their first three principal components as '
  'colours; last the image lit by attention rollout. In neighbouring columns a colour is of the same sign.'
)
_CAPTIONS |= {'steps': _STEPS, 'animation': 'The same, step after step, with the most probable class.'}
_HYBRID = ' A ResNet goes before: what it makes of this square, and of pixels around it, becomes the token.'
_OTHERS = ' What goes to the class token and registers is not shown.'

_STYLE = """div img { width: 14rem; }
nav img { height: 6rem; width: auto; margin: 0; }
"""


@dataclasses.dataclass(frozen=True)
class Facts:
  """What the page says beside its pictures."""

  title: str  # the checkpoint, as it was given
  rows: Mapping[str, str]  # name -> value of the table at the top
  absent: Mapping[str, str]  # picture -> why there is none
  averaged: str  # what the attention distance is the mean over: '128 images'
  hybrid: bool
  leading_tokens: bool  # whether there are tokens that are no patches: the class token, registers


def write(
  facts: Facts,
  of_model: Mapping[str, str],
  of_images: Sequence[tuple[Observation, Mapping[str, str]]],
) -> str:
  """The page: of the model, picture -> file beside the page, and of each image likewise, 'photograph' among them."""
  links = ''.join(
    f'<a href="#image-{number}"><img src="{files["photograph"]}" alt="{escape(seen.name)}"></a>\n'
    for number, (seen, files) in enumerate(of_images, 1)
  )
  title = f'What {facts.title} sees'
  parts = [
    f'<h1>{escape(title)}</h1>\n{web_page.table(facts.rows)}',
    f'<h2>The images</h2>\n<nav>\n{links}</nav>\n',
    _absent(facts.absent),
    '<h2>The model</h2>\n',
    *(_figure(picture, file, _caption(picture, facts)) for picture, file in of_model.items()),
    *(_image(number, seen, files, facts) for number, (seen, files) in enumerate(of_images, 1)),
  ]
  return web_page.document(title, ''.join(parts), _STYLE)


def _absent(reasons: Mapping[str, str]) -> str:
  if not reasons:
    return ''
  items = ''.join(f'<li>{escape(titles)}: {escape(why)}</li>\n' for titles, why in grouped(reasons))
  return f'<h2>What this model has no picture of</h2>\n<ul>\n{items}</ul>\n'


def _image(number: int, seen: Observation, files: Mapping[str, str], facts: Facts) -> str:
  best = ''.join(
    f'<tr><td>{escape(name)}</td><td class="number">{share:.1%}</td></tr>\n'
    for name, share in seen.predictions
  )
  table = f'<table>\n<tr><th>prediction</th><th>probability</th></tr>\n{best}</table>\n' if best else ''
  photo = f'<img src="{files["photograph"]}" alt="The image as the model sees it.">\n'
  pictures = ''.join(
    _figure(picture, file, _caption(picture, facts, seen))
    for picture, file in files.items()
    if picture != 'photograph'
  )
  return f'<h2 id="image-{number}">{escape(seen.name)}</h2>\n<div>\n{photo}{table}</div>\n{pictures}'


def _figure(picture: str, file: str, caption: str) -> str:
  return (
    f'<h3>{TITLES[picture]}</h3>\n<figure>\n'
    f'<a href="{file}"><img src="{file}" alt="{TITLES[picture]}: described below."></a>\n'
    f'<figcaption>{caption}</figcaption>\n</figure>\n'
  )


def _caption(picture: str, facts: Facts, seen: Observation | None = None) -> str:
  return _CAPTIONS[picture].format(
    paper=_PAPER,
    rollout=_ROLLOUT,
    dinov2=_DINOV2,
    averaged=facts.averaged,
    hybrid=_HYBRID if facts.hybrid else '',
    others=_OTHERS if facts.leading_tokens else '',
    attending=seen.attending if seen else '',
  )
