"""The command in a process of its own."""

import pathlib

import fork_server
import numpy as np
import pytest
from PIL import Image
from released_files import write_random

from vit_jax.config import MixerConfig, ViTConfig


@pytest.fixture
def place(tmp_path) -> pathlib.Path:
  """A folder with a checkpoint of 32 px, and a folder of photographs of which one is damaged."""
  model = ViTConfig(variant='custom', patch=16, width=32, mlp_dim=48, depth=1, heads=4)
  write_random(model, tmp_path / 'model.npz', image_size=(32, 32), num_classes=4)
  rng = np.random.default_rng(0)
  (tmp_path / 'photos').mkdir()
  (tmp_path / 'empty').mkdir()
  for number in range(3):
    pixels = rng.integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / 'photos' / f'{number}.jpg')
  (tmp_path / 'photos' / '2.jpg').write_text('nonsense')
  (tmp_path / 'names.txt').write_text('cat\ndog\nfox\nowl')
  return tmp_path


def visualize(place, *arguments):
  return fork_server.run('vit_jax.visualize', '--checkpoint=model.npz', '--out=seen', *arguments, cwd=place)


def said(result):
  assert result.returncode == 2, result.stdout + result.stderr
  assert 'Traceback' not in result.stderr
  return result.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_folder_is_drawn_without_the_image_that_cannot_be_read(place):
  """The first and the last image are drawn; attention is averaged over all that are there, and counts them."""
  result = visualize(place, 'photos', '--image_size=32,48', '--class_names=names.txt', '--count=2')
  assert said(result).startswith('1 of 3 images could not be read')
  assert '2.jpg is not an image' in result.stderr
  wanted = f'Wrote {pathlib.Path("seen/index.html")}: 1 of 3 images are drawn; --count=N draws more.'
  assert wanted in result.stdout
  text = (place / 'seen/index.html').read_text()
  assert '32 × 48 pixels' in text and 'photos/0.jpg' in text and 'photos/2.jpg' not in text
  assert sum(f'<td>{name}</td>' in text for name in ('cat', 'dog', 'fox', 'owl')) >= 3
  assert (place / 'seen/image_1_rollout.png').exists()


@pytest.mark.slow
def test_only_images_that_were_to_be_read_are_counted(place):
  """A Mixer has no attention to average, so that the image between those that are drawn is not read."""
  mixer = MixerConfig(variant='custom', patch=16, width=32, mlp_dim=48, depth=1, tokens_mlp_dim=16)
  write_random(mixer, place / 'mixer.npz', image_size=(32, 32), num_classes=4)
  result = visualize(place, 'photos', '--checkpoint=mixer.npz', '--count=2')
  assert said(result).startswith('1 of 2 images could not be read')
  assert ': 1 of 3 images are drawn; --count=N draws more.' in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
  'arguments, sentence',
  [
    (['photos', '--image_size=large'], '--image_size=large is no size'),
    (['photos', '--steps=all'], '--steps'),
  ],
)
def test_wrong_arguments_are_one_sentence_and_leave_nothing_behind(place, arguments, sentence):
  assert sentence in said(visualize(place, *arguments))
  assert not (place / 'seen').exists()
