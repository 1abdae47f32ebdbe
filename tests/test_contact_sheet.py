import fork_server
import numpy as np
import pytest
from commands import CONFIG
from PIL import Image

from vit_jax.data import augmentation_sheet, sources
from vit_jax.data.config import DataConfig


@pytest.mark.slow
def test_picture_has_a_square_of_images_for_each_level(tmp_path):
  """The real command; the picture's cells are the images of its pipeline, enlarged."""
  (tmp_path / 'config.py').write_text(CONFIG)
  flags = ['--config.data.crop=resize', '--config.data.flip=False', '--config.data.cutmix=1.0']
  result = fork_server.run(
    'vit_jax.contact_sheet', '--config=config.py', '--workdir=run', *flags, cwd=tmp_path
  )
  assert result.returncode == 0, result.stderr
  path = tmp_path / 'run/report/augmentations.png'
  assert '64 images under 9 augmentations' in result.stdout and str(path.name) in result.stdout
  picture = np.asarray(Image.open(path))
  side = 8 * 96  # eight images of 8 pixels, each enlarged 12 times
  assert picture.shape == (3 * (side + 28 + 16) + 16, 4 * (side + 16) + 16, 3)
  squares = [
    picture[16 + row * (side + 44) + 28 :, 16 + column * (side + 16) :][:side, :side]
    for row in range(3)
    for column in range(4)
  ]
  for square in squares[:9]:
    pixels = square[::12, ::12]
    np.testing.assert_array_equal(np.repeat(np.repeat(pixels, 12, axis=0), 12, axis=1), square)
  none, *others = (square[::12, ::12].astype(int) for square in squares[:9])
  assert len(np.unique(none.reshape(8, 8, 8, 8, 3).transpose(0, 2, 1, 3, 4).reshape(64, -1), axis=0)) > 60
  for other in others:
    assert (other != none).any(-1).mean() > 0.05
  assert (squares[9] == 255).all()  # paper


def test_images_of_any_shape_are_drawn_in_the_image_size():
  data = DataConfig(source='digits', image_size=(24, 24), max_patches=(16,), flip=False)
  images = augmentation_sheet.training_images(sources.open_training(data, 0), data, 0)
  assert images.shape == (64, 24, 24, 3) and images.std() > 10


def test_titles_say_what_each_level_does():
  data = DataConfig(augment='erase(0.25)', mixup=0.3, cutmix=1.0)
  titles = list(augmentation_sheet.levels(data))
  assert titles[:3] == ['none', 'light1: randaugment(2,0)', 'light2: randaugment(2,10), mixup 0.2']
  assert titles[-2:] == ['3augment', 'this config: erase(0.25), mixup 0.3, cutmix 1.0']
  assert list(augmentation_sheet.levels(DataConfig(augment='medium1'))) == titles[:-1]
