"""The figures as they are painted, and the page that shows them."""

import html.parser
import pathlib

import numpy as np
import pytest
import tiny
from flax import nnx
from matplotlib.backends.backend_agg import FigureCanvasAgg

from vit_jax.errors import UserError
from vit_jax.pretrained.base import Preprocess
from vit_jax.visualize import figures, gallery, model_parts
from vit_jax.visualize.observations import Observer, Seen

MODELS = {
  'vit': {'register_tokens': 1},
  'hybrid': {'stem_blocks': (1,), 'stem_width': 32, 'patch': 1},
  'mixer': {'tokens_mlp_dim': 16, 'heads': None, 'pool': 'gap'},
}
RESNET = {
  'resnet_blocks': (1,),
  'pool': 'gap',
  **dict.fromkeys(('patch', 'mlp_dim', 'depth', 'heads')),
}
NONE_OF = {
  'vit': set(),
  'hybrid': set(),
  'mixer': {'positions', 'distances', 'heads', 'rollout'},
}


def module(image_size=(12, 8), channels=3, num_classes=5, **options):
  parts = tiny.build(
    tiny.options(**options), image_size=image_size, channels=channels, num_classes=num_classes
  )
  model = nnx.merge(*parts)
  model.preprocess = Preprocess.from_range(image_size, -1, 1, channels=channels)
  model.class_names = tuple(f'<{letter}>' for letter in 'abcde')
  return model


class Page(html.parser.HTMLParser):
  """Its elements: (tag, attributes)."""

  def __init__(self, text):
    super().__init__()
    self.elements = []
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attributes):
    self.elements.append((tag, dict(attributes)))


@pytest.mark.parametrize('name', MODELS)
def test_all_of_a_model(name, tmp_path):
  size = (32, 64) if name == 'hybrid' else (12, 8)
  model = module(size, 1 if name == 'mixer' else 3, **MODELS[name])
  paths = [pathlib.Path(f'<i>{number}&.png') for number in range(3)]
  rng = np.random.default_rng(0)

  def read(path):
    pixels = rng.integers(0, 256, (40, 30, model.preprocess.channels), dtype=np.uint8)
    return None if path == paths[0] else pixels

  absent = gallery.make(model, paths, paths[:2], read, tmp_path, title='a & b')
  assert absent.keys() == NONE_OF[name]
  text = (tmp_path / 'index.html').read_text()
  elements = Page(text).elements
  assert {tag for tag, _ in elements}.isdisjoint({'script', 'link', 'iframe', 'i'})
  assert 'a &amp; b' in text and '&lt;i&gt;1&amp;.png' in text
  pictures = [attributes for tag, attributes in elements if tag == 'img']
  wanted = {'image_1.png'}
  wanted |= {f'{picture}.png' for picture in model_parts.OF_MODEL if picture not in absent}
  wanted |= {f'image_1_{picture}.png' for picture in model_parts.OF_IMAGE if picture not in absent}
  assert {picture['src'] for picture in pictures} == wanted
  assert wanted == {path.name for path in tmp_path.glob('*.png')}
  assert all(picture['alt'] for picture in pictures)
  for reason in absent.values():
    assert reason in text.replace('&#x27;', "'")
  assert text.count('<tr><td>&lt;') == 3  # predictions
  if 'distances' not in absent:
    assert 'over all patches and 2 images' in ' '.join(text.split())


def test_nothing_to_read(tmp_path):
  with pytest.raises(UserError, match='None of the images can be read'):
    gallery.make(module(), [], [pathlib.Path('a')], lambda path: None, tmp_path, title='')


@pytest.mark.parametrize(
  'options, picture, reason',
  [
    ({'pool': 'none'}, 'predictions', 'logits of every token'),
    ({'num_classes': 0}, 'predictions', 'no head'),
    (MODELS['mixer'], 'positions', 'weights for each place'),
    (RESNET, 'heads', 'no attention'),
    (RESNET, 'layers', 'no tokens'),
    (RESNET, 'positions', 'no position embedding'),
    ({'position': 'none'}, 'positions', 'knows nothing of positions'),
    ({'position': 'rotary'}, 'positions', "attention itself knows of positions ('rotary')"),
    (MODELS['mixer'], 'heads', 'no attention'),
  ],
)
def test_reasons(options, picture, reason):
  assert reason in model_parts.absent(module(**options))[picture]


def test_filters_of_a_resnet_are_its_first_convolution():
  figure = figures.filters(module(**RESNET))
  assert '28 principal components\nof 32 filters of 7 × 7 pixels' in figure.get_suptitle()


def test_whose_attention():
  """Of the class token only where the head reads it."""
  reads = {
    pool: model_parts.reads_class_token(module(pool=pool, class_token=True)) for pool in ('token', 'gap')
  }
  assert reads == {'token': True, 'gap': False}
  assert not model_parts.reads_class_token(module(pool='gap'))


def test_spread():
  assert gallery.spread(range(9), 3) == [0, 4, 8]
  assert gallery.spread(range(2), 3) == [0, 1]
  assert gallery.spread(range(9), 1) == [0]


def painted(figure, number):
  """float (h, w): how bright the figure's axes of that number are, as they are on the screen."""
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  pixels = np.asarray(canvas.buffer_rgba())[..., :3].mean(axis=-1)
  left, bottom, right, top = (round(side) for side in figure.axes[number].get_window_extent().extents)
  return pixels[len(pixels) - top + 2 : len(pixels) - bottom - 2, left + 2 : right - 2]


@pytest.mark.parametrize(
  'picture, axes', [('patches', [0]), ('layers', [0, 1]), ('heads', [0]), ('rollout', [0, 1, 2])]
)
def test_right_side_up(picture, axes):
  """Of 3 x 2 patches the one above on the right is bright, in every picture and at the photograph's place."""
  bright = np.zeros((3, 2))
  bright[0, 1] = 1
  photograph = bright.repeat(4, axis=0).repeat(4, axis=1)[..., None].repeat(3, axis=2)
  layers = bright[None, ..., None].repeat(3, axis=-1).repeat(3, axis=0)
  maps = bright[None, None].repeat(2, axis=0)
  seen = Seen('', photograph, (), (3, 2), 'the class token', maps, bright, None, layers)
  figure = getattr(figures, picture)(seen)
  for number in axes:
    pixels = painted(figure, number)
    height, width = pixels.shape
    thirds = pixels[: height // 3 * 3, : width // 2 * 2].reshape(3, height // 3, 2, width // 2)
    means = thirds[:, 5:-5, :, 5:-5].mean(axis=(1, 3))
    assert means.argmax() == 1 and means[0, 1] > 4 * np.delete(means, 1).max()
    assert abs(width / height - 2 / 3) < 0.1


def test_tokens_lie_where_their_patches_do():
  model = module()
  model.position_embedding[...] *= 0
  pixels = np.full((12, 8, 3), 100, np.uint8)
  pixels[:4, 4:] = 255
  colours = Observer(model).look(pixels).layers
  assert colours.shape == (3, 3, 2, 3)
  for depth in colours:
    apart = np.abs(depth - np.median(depth, axis=(0, 1))).max(axis=-1)
    assert apart.argmax() == 1
