"""The pixels of `Preprocess`, one by one, against timm's and transformers' own code.

By night 500 images of random sizes are compared, by day sizes for which rounding has gone wrong before and a few more.
"""

import os

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.config import DataConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.pretrained import preprocessor_config, timm_config
from vit_jax.pretrained.json_values import JsonObject

# Height and width. timm's place of the cut rounds up where the rest is 4n + 3, as of 333 x 500 for 224 of 256.
KNOWN = [(408, 408), (464, 600), (333, 500), (498, 664), (300, 343), (3, 50)]
COUNT = 500 if os.environ.get('VIT_JAX_NIGHTLY') else 10

IMAGENET = {'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)}
# Size of the model's input -> what pretrained_cfg says of it.
TIMM = {
  'center': ((224, 224), {'crop_pct': 0.9, **IMAGENET}),
  'defaults': ((224, 224), {}),
  'even rest': ((64, 64), {'crop_pct': 0.9, 'interpolation': 'bilinear', 'mean': (0.5,) * 3, 'std': (0.5,) * 3}),
  'covered': ((64, 128), {'crop_pct': 0.9, 'interpolation': 'bicubic', **IMAGENET}),
  'covered exactly': ((128, 96), {'crop_pct': 1.0, 'crop_mode': 'center', 'interpolation': 'lanczos'}),
  'squashed': ((224, 160), {'crop_pct': 0.875, 'crop_mode': 'squash'}),
  'bordered': ((160, 224), {'crop_pct': 0.95, 'crop_mode': 'border', **IMAGENET}),
  'larger than the image': ((96, 96), {'crop_pct': 1.1, 'interpolation': 'nearest'}),
}
SQUARE = {'height': 224, 'width': 224}
TRANSFORMERS = {
  'vit': ('ViT', {'size': SQUARE}),
  'deit': ('DeiT', {'size': {'height': 248, 'width': 256}, 'crop_size': SQUARE, 'do_center_crop': True}),
  'dinov2': ('Bit', {'size': {'shortest_edge': 256}, 'crop_size': SQUARE, 'image_mean': [0.485, 0.456, 0.406]}),
  'lanczos': ('Bit', {'size': {'shortest_edge': 248}, 'crop_size': {'height': 96, 'width': 225}, 'resample': 1}),
  'clip': ('CLIP', {}),
  'efficientnet': ('EfficientNet', {'do_center_crop': True, 'rescale_offset': True, 'resample': 0}),
}


@pytest.fixture(scope='module')
def photographs() -> list[Image.Image]:
  rng = np.random.default_rng(0)
  sizes = np.exp(rng.uniform(np.log(32), np.log(1200), (COUNT, 2))).astype(int)
  return [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in (*KNOWN, *sizes)]


def compare(preprocess: Preprocess, photographs, expected, levels: int = 0) -> None:
  """Compares as floats, and as bytes also what evaluators of a run take over from a checkpoint."""
  data = DataConfig(
    image_size=preprocess.size,
    mean=preprocess.mean,
    std=preprocess.std,
    interpolation=preprocess.interpolation,
  )
  of_run = Preprocess.of_run(data, preprocess.crop, preprocess.resize)
  assert of_run == preprocess
  differing = 0
  for photograph in photographs:
    wanted, found = expected(photograph), preprocess([photograph])[0]
    as_bytes = np.rint((wanted * np.asarray(preprocess.std) + preprocess.mean) * 255).astype(int)
    difference = np.abs(of_run.as_bytes(np.asarray(photograph)).astype(int) - as_bytes)
    assert difference.max() <= levels, photograph.size
    differing += np.count_nonzero(difference.max(axis=-1))
    step = 1 / 255 / np.min(preprocess.std)
    np.testing.assert_allclose(found, wanted, atol=1e-5 + levels * step, rtol=0)
  print(differing, 'pixels differ')


@pytest.mark.parametrize('name', TIMM)
def test_pixels_are_those_of_timm(name, photographs):
  data = pytest.importorskip('timm.data', reason='needs timm and torchvision', exc_type=ImportError)
  size, said = TIMM[name]
  values = {'input_size': [3, *size], **said}
  theirs = data.create_transform(**data.resolve_data_config(pretrained_cfg=values))
  preprocess = timm_config.preprocess(JsonObject('config.json', values), size, 3)
  compare(preprocess, photographs, lambda image: theirs(image).numpy().transpose(1, 2, 0))


@pytest.mark.parametrize('backend', ['Pil', ''])
@pytest.mark.parametrize('name', TRANSFORMERS)
def test_pixels_are_those_of_transformers(name, backend, photographs, tmp_path):
  transformers = pytest.importorskip('transformers')
  if not backend:  # PyTorch's resize rounds otherwise than Pillow's
    pytest.importorskip('torchvision', exc_type=ImportError)
  kind, options = TRANSFORMERS[name]
  theirs = getattr(transformers, f'{kind}ImageProcessor{backend}')(**options)
  theirs.save_pretrained(tmp_path)
  preprocess, notes = preprocessor_config.read(tmp_path, image_size=None, channels=3, default={})
  assert not notes

  def expected(image: Image.Image) -> np.ndarray:
    return np.asarray(theirs(image, return_tensors='np')['pixel_values'][0]).transpose(1, 2, 0)

  compare(preprocess, photographs, expected, levels=0 if backend else 1)
