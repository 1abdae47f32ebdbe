"""The figures as they are painted, and the page that shows them."""

import csv
import html.parser
import math
import pathlib

import numpy as np
import pytest
import tiny
from flax import nnx
from matplotlib.backends.backend_agg import FigureCanvasAgg

from vit_jax.config import MixerConfig, ResNetConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel
from vit_jax.models.base import ModelConfig
from vit_jax.visualize import figures, gallery, model_parts
from vit_jax.visualize.observations import Observation, Observer

MIXER = MixerConfig(variant='custom', patch=4, width=32, mlp_dim=48, depth=2, tokens_mlp_dim=16)
RESNET = ResNetConfig(variant='custom', blocks=(1,), width=32)
MODELS = {
  'vit': tiny.options(register_tokens=1, depth=1),
  'hybrid': tiny.options(stem_blocks=(1,), stem_width=32, patch=1, depth=1),
  'mixer': MIXER,
}
NONE_OF = {'vit': set(), 'hybrid': set(), 'mixer': {'positions', 'distances', 'heads', 'rollout'}}


def loaded(
  config: ModelConfig | None = None,
  *,
  image_size: tuple[int, int] = (12, 8),
  channels: int = 3,
  num_classes: int = 5,
  **changes: np.ndarray,
) -> LoadedModel:
  """A model with random parameters, of which `changes` replaces some by name."""
  config = config or tiny.options()
  graphdef, params = tiny.build(config, image_size=image_size, channels=channels, num_classes=num_classes)
  module = nnx.merge(graphdef, params | changes)
  preprocess = Preprocess.from_range(image_size, -1, 1, channels=channels)
  return LoadedModel(module, preprocess, tuple(f'<{letter}>' for letter in 'abcde'))


class Page(html.parser.HTMLParser):
  """Its elements: (tag, attributes)."""

  def __init__(self, text):
    super().__init__()
    self.elements = []
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attributes):
    self.elements.append((tag, dict(attributes)))


@pytest.mark.nightly(but='vit')
@pytest.mark.slow
@pytest.mark.parametrize('name', MODELS)
def test_page_shows_every_picture_that_the_model_has(name, tmp_path):
  size = (32, 64) if name == 'hybrid' else (12, 8)
  model = loaded(MODELS[name], image_size=size, channels=1 if name == 'mixer' else 3)
  paths = [pathlib.Path(f'<i>{number}&.png') for number in range(3)]
  rng = np.random.default_rng(0)

  def read(path):
    pixels = rng.integers(0, 256, (40, 30, model.preprocess.channels), dtype=np.uint8)
    return None if path == paths[0] else pixels

  absent = gallery.make(model, paths, paths[:2], read, gallery.Output(tmp_path, 50, 'svg'), title='a & b')
  drawn, second = ({path.stem for path in tmp_path.glob(f'*.{kind}')} for kind in ('png', 'svg'))
  assert second == drawn - {'image_1'}  # the photograph
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
  assert (tmp_path / 'distances.csv').exists() == ('distances' not in absent)
  if 'distances' not in absent:
    assert 'over all patches and 2 images' in ' '.join(text.split())


@pytest.mark.slow
def test_distances_as_numbers_are_the_means_over_images_by_block_and_head(tmp_path, monkeypatch):
  monkeypatch.setattr(gallery, '_save', lambda draw, prefix, output: {})  # no pictures
  model = loaded(image_size=(12, 8))
  rng = np.random.default_rng(0)
  paths = [pathlib.Path(f'{number}.png') for number in range(3)]
  images = {path: rng.integers(0, 256, (20, 30, 3), dtype=np.uint8) for path in paths}
  gallery.make(model, paths, paths[:1], images.get, gallery.Output(tmp_path), title='')
  with (tmp_path / 'distances.csv').open(newline='') as file:
    *blocks, alike = csv.DictReader(file)
  observer = Observer(model)
  expected = np.mean([observer.distances(pixels) for pixels in images.values()], axis=0)
  heads = [f'head_{number + 1}' for number in range(expected.shape[1])]
  assert [row['block'] for row in blocks] == [str(number + 1) for number in range(len(expected))]
  np.testing.assert_allclose([[float(row[head]) for head in heads] for row in blocks], expected, atol=1e-4)
  np.testing.assert_allclose([float(row['mean']) for row in blocks], expected.mean(axis=1), atol=1e-4)
  # Pixels between the centres of two of the grid's patches, the distance to itself among them.
  rows, columns = model_parts.patch_grid(model)
  places = [(row * 12 / rows, column * 8 / columns) for row in range(rows) for column in range(columns)]
  mean = np.mean([math.dist(one, other) for one in places for other in places])
  assert {alike[column] for column in ('mean', *heads)} == {f'{mean:.4f}'} and alike['block'] == 'alike'


def test_model_that_cuts_images_is_shown_with_what_its_patches_hold():
  """14 x 11 pixels in patches of 4 are the 12 x 8 at the upper left, for which another model has the same numbers."""
  cutting = loaded(tiny.options(cut_images=True), image_size=(14, 11))
  whole = loaded(image_size=(12, 8))
  nnx.update(whole.module, nnx.state(cutting.module))
  image = np.random.default_rng(0).integers(0, 256, (14, 11, 3), dtype=np.uint8)
  found, wanted = Observer(cutting).look(image), Observer(whole).look(image[:12, :8])
  assert found.grid == wanted.grid == (3, 2)
  for field in ('photograph', 'heads', 'rollout', 'distances'):
    np.testing.assert_allclose(getattr(found, field), getattr(wanted, field), rtol=1e-5, atol=1e-6)


def test_images_of_which_none_can_be_read_are_an_error(tmp_path):
  with pytest.raises(UserError, match='None of the images can be read'):
    gallery.make(loaded(), [], [pathlib.Path('a')], lambda path: None, gallery.Output(tmp_path), title='')


@pytest.mark.parametrize(
  'config, num_classes, picture, reason',
  [
    (tiny.options(pool='none'), 5, 'predictions', 'logits of every token'),
    (tiny.options(), 0, 'predictions', 'no head'),
    (MIXER, 5, 'positions', 'weights for each place'),
    (RESNET, 5, 'layers', 'no tokens'),
    (tiny.options(position='none'), 5, 'positions', 'knows nothing of positions'),
    (tiny.options(position='rotary'), 5, 'positions', "attention itself knows of positions ('rotary')"),
  ],
)
def test_missing_picture_comes_with_its_reason(config, num_classes, picture, reason):
  model = loaded(config, num_classes=num_classes)
  assert reason in model_parts.absent(model)[picture]
  if config is RESNET:  # which has its first convolution
    title = figures.filters(model).get_suptitle()
    assert '28 principal components\nof 32 filters of 7 × 7 pixels' in title


def test_images_to_draw_are_spread_evenly_over_all():
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
def test_every_picture_is_right_side_up(picture, axes):
  """Of 3 x 2 patches the one above on the right is bright, in every picture and at the photograph's place."""
  bright = np.zeros((3, 2))
  bright[0, 1] = 1
  photograph = bright.repeat(4, axis=0).repeat(4, axis=1)[..., None].repeat(3, axis=2)
  layers = bright[None, ..., None].repeat(3, axis=-1).repeat(3, axis=0)
  maps = bright[None, None].repeat(2, axis=0)
  pictures = {
    'photograph': photograph,
    'heads': maps,
    'rollout': bright,
    'layers': layers,
    'features': layers[0],
  }
  seen = Observation('', predictions=(), grid=(3, 2), attending='', distances=None, **pictures)
  figure = getattr(figures, picture)(seen)
  for number in axes:
    pixels = painted(figure, number)
    height, width = pixels.shape
    thirds = pixels[: height // 3 * 3, : width // 2 * 2].reshape(3, height // 3, 2, width // 2)
    means = thirds[:, 5:-5, :, 5:-5].mean(axis=(1, 3))
    assert means.argmax() == 1 and means[0, 1] > 4 * np.delete(means, 1).max()
    assert abs(width / height - 2 / 3) < 0.1


def test_one_outlier_leaves_the_rest_of_a_rollout_visible():
  rollout = np.ones((14, 14))
  rollout[0, 0] = 1000
  share = figures._share(rollout)
  assert share.min() == 1
  smooth = figures._smooth(share - np.eye(14) / 2, (140, 140))
  assert smooth.shape == (140, 140) and smooth.min() >= 0 and smooth.max() <= 1


def test_tokens_are_drawn_where_their_patches_lie():
  model = loaded(position_embedding=np.zeros((1, 7, 32), np.float32))
  pixels = np.full((12, 8, 3), 100, np.uint8)
  pixels[:4, 4:] = 255
  colours = Observer(model).look(pixels).layers
  assert colours.shape == (3, 3, 2, 3)
  for depth in colours:
    apart = np.abs(depth - np.median(depth, axis=(0, 1))).max(axis=-1)
    assert apart.argmax() == 1
