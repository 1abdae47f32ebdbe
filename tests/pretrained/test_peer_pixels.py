"""The pixels of `Preprocess`, one by one, against timm's, transformers' and torchvision's own code.

By night 500 images of random sizes are compared, by day those for which rounding has gone wrong before and a few more;
with VIT_JAX_PHOTOGRAPHS=/folder the JPEGs in it instead, and -s prints how many pixels differ.
"""

import json
import os
import pathlib

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.config import DataConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.pretrained import open_clip, original_names, preprocessor_config, timm_config
from vit_jax.pretrained.json_values import JsonObject

# Height and width. timm's place of the cut rounds up where the rest is 4n + 3, as of 333 x 500 for 224 of 256.
# torchvision's is half a pixel from two in the last three, the first of which is COCO's commonest shape.
KNOWN = [
  (408, 408),
  (464, 600),
  (333, 500),
  (498, 664),
  (300, 343),
  (3, 50),
  (427, 640),
  (281, 500),
  (500, 334),
]
COUNT = 500 if os.environ.get('VIT_JAX_NIGHTLY') else 4

IMAGENET = {'mean': (0.485, 0.456, 0.406), 'std': (0.229, 0.224, 0.225)}
# Size of the model's input -> what pretrained_cfg says of it.
TIMM = {
  'center': ((224, 224), {'crop_pct': 0.9, **IMAGENET}),
  'defaults': ((224, 224), {}),
  'even rest': (
    (64, 64),
    {'crop_pct': 0.9, 'interpolation': 'bilinear', 'mean': (0.5,) * 3, 'std': (0.5,) * 3},
  ),
  'covered': ((64, 128), {'crop_pct': 0.9, 'interpolation': 'bicubic', **IMAGENET}),
  'covered exactly': ((128, 96), {'crop_pct': 1.0, 'crop_mode': 'center', 'interpolation': 'lanczos'}),
  'squashed': ((224, 160), {'crop_pct': 0.875, 'crop_mode': 'squash'}),
  'bordered': ((160, 224), {'crop_pct': 0.95, 'crop_mode': 'border', **IMAGENET}),
  'larger than the image': ((96, 96), {'crop_pct': 1.1, 'interpolation': 'nearest'}),
}
SQUARE = {'height': 224, 'width': 224}
TRANSFORMERS = {
  'vit': ('ViT', {'size': SQUARE}),
  'deit': ('DeiT', {'size': {'height': 248, 'width': 256}, 'crop_size': SQUARE}),
  'dinov2': (
    'Bit',
    {'size': {'shortest_edge': 256}, 'crop_size': SQUARE, 'image_mean': [0.485, 0.456, 0.406]},
  ),
  'lanczos': (
    'Bit',
    {'size': {'shortest_edge': 248}, 'crop_size': {'height': 96, 'width': 225}, 'resample': 1},
  ),
  'clip': ('CLIP', {}),
  'aimv2': ('CLIP', {'size': {'shortest_edge': 336}, 'crop_size': {'height': 336, 'width': 336}}),
  'mae': ('ViT', {'size': SQUARE, 'resample': 3, 'image_mean': list(IMAGENET['mean'])}),
  'siglip': ('Siglip', {}),
  'siglip 2': (
    'Siglip',
    {'size': {'height': 256, 'width': 256}, 'resample': 2, 'image_std': [0.5, 0.4, 0.5]},
  ),
  'siglip cut': ('Siglip', {'size': 40, 'do_center_crop': True, 'crop_size': {'height': 33, 'width': 32}}),
  'larger than the image': ('DeiT', {'size': {'height': 221, 'width': 225}, 'crop_size': SQUARE}),
  'beit': ('Beit', {}),
  'dinov3': ('DINOv3ViT', {}),
  'efficientnet defaults': ('EfficientNet', {}),
  'efficientnet once': ('EfficientNet', {'include_top': False}),
  'efficientnet raw': ('EfficientNet', {'do_normalize': False}),
  'efficientnet range': ('EfficientNet', {'rescale_offset': True, 'rescale_factor': 1 / 127.5}),
  'of EfficientNet alone': ('ViT', {'rescale_offset': True, 'include_top': True}),
  'efficientnet no range': ('EfficientNet', {'rescale_offset': True, 'do_rescale': False}),
  'efficientnet': ('EfficientNet', {'do_center_crop': True, 'rescale_offset': True, 'resample': 0}),
}


@pytest.fixture(scope='module')
def photographs() -> list[Image.Image]:
  if folder := os.environ.get('VIT_JAX_PHOTOGRAPHS'):
    return [Image.open(path).convert('RGB') for path in sorted(pathlib.Path(folder).rglob('*.JPEG'))]
  rng = np.random.default_rng(0)
  sizes = np.exp(rng.uniform(np.log(32), np.log(900), (COUNT, 2))).astype(int)
  return [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in (*KNOWN, *sizes)]


def compare(preprocess: Preprocess, photographs, expected, differing: float = 0.0) -> None:
  """Compares the input of a model, and the bytes that evaluators of a run, who take it over, make of images.

  Args:
    preprocess: ours.
    photographs: what to prepare.
    expected: a photograph -> float (*size, 3).
    differing: share of pixels that may differ by more than two levels of 255.
  """
  own = {name: getattr(preprocess, name) for name in ('mean', 'std', 'interpolation')}
  of_run = Preprocess.of_run(
    DataConfig(image_size=preprocess.size, **own), preprocess.crop, preprocess.resize
  )
  assert of_run == preprocess
  counts = np.zeros(256, int)
  for number, photograph in enumerate(photographs):
    wanted = expected(photograph)
    levels = np.rint((wanted * np.asarray(preprocess.std) + preprocess.mean) * 255).astype(int)
    difference = np.abs(of_run.as_bytes(np.asarray(photograph)) - levels).max(axis=-1)
    assert np.mean(difference > 2) <= differing, photograph.size
    counts += np.bincount(difference.ravel(), minlength=256)
    assert differing or not difference.any(), photograph.size
    if not differing and number < len(KNOWN):
      np.testing.assert_allclose(preprocess([photograph])[0], wanted, atol=1e-5, rtol=0)
  print(
    f'{len(photographs)} images, {counts.sum():,} pixels; by level of difference: {counts[:4]}, {counts[4:].sum()}'
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', TIMM)
def test_pixels_are_those_of_timm(name, photographs):
  data = pytest.importorskip('timm.data', reason='needs timm and torchvision', exc_type=ImportError)
  size, said = TIMM[name]
  values = {'input_size': [3, *size], **said}
  theirs = data.create_transform(**data.resolve_data_config(pretrained_cfg=values))
  preprocess = timm_config.preprocess(JsonObject('config.json', values), size, 3)
  compare(preprocess, photographs, lambda image: theirs(image).numpy().transpose(1, 2, 0))


@pytest.mark.nightly(but='Pil')
@pytest.mark.slow
@pytest.mark.parametrize('backend', ['Pil', ''])
@pytest.mark.parametrize('name', TRANSFORMERS)
def test_pixels_are_those_of_transformers(name, backend, photographs, tmp_path):
  """PyTorch's resize rounds otherwise than Pillow's, and takes the other neighbour for 'nearest' at some ties."""
  transformers = pytest.importorskip('transformers')
  if not backend:
    pytest.importorskip('torchvision')
  if name == 'larger than the image' and not backend:
    pytest.skip("PyTorch's cut has the odd row of a border below, Pillow's above")
  kind, options = TRANSFORMERS[name]
  theirs = getattr(transformers, f'{kind}ImageProcessor{backend}', None)
  if theirs is None:
    pytest.skip('transformers resizes by PyTorch only')
  theirs = theirs(**options)
  file = tmp_path / preprocessor_config.FILE  # what it does not say is as the processor's class has it
  file.write_text(json.dumps({**options, 'image_processor_type': f'{kind}ImageProcessor'}))
  preprocess, notes = preprocessor_config.read(tmp_path, image_size=None, channels=3, default={})
  assert not notes

  def expected(image: Image.Image) -> np.ndarray:
    return np.asarray(theirs(image, return_tensors='np')['pixel_values'][0]).transpose(1, 2, 0)

  compare(preprocess, photographs, expected, differing=0.0 if backend else 0.02)


@pytest.mark.slow
@pytest.mark.parametrize('size', [(224, 224), (32, 64), (64, 32)])
@pytest.mark.parametrize('mode', ['shortest', 'squash'])
def test_pixels_are_those_of_open_clip(mode, size, photographs):
  transform = pytest.importorskip('open_clip.transform')
  values = {
    'interpolation': 'bicubic',
    'resize_mode': mode,
    'mean': [0.48, 0.46, 0.41],
    'std': [0.27, 0.26, 0.28],
  }
  theirs = transform.image_transform_v2(transform.PreprocessCfg(size=size, **values), is_train=False)
  preprocess = open_clip.preprocess_of(JsonObject(pathlib.Path('x'), values), size)
  compare(preprocess, photographs, lambda image: theirs(image).numpy().transpose(1, 2, 0))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['torchvision', 'others'])
def test_pixels_of_files_with_own_names_are_those_of_torchvision(name, photographs):
  """By the code that evaluates torchvision's models, DINOv2 and MAE."""
  transforms = pytest.importorskip('torchvision.transforms')
  families = original_names.TorchvisionFormat.families | original_names.OriginalFormat.families
  preprocess = Preprocess((224, 224), 3, shorter=256, **families[name].preprocess)
  way = transforms.InterpolationMode(preprocess.method)
  theirs = transforms.Compose(
    [
      transforms.Resize(256, way),
      transforms.CenterCrop(224),
      transforms.ToTensor(),
      transforms.Normalize(**IMAGENET),
    ]
  )
  compare(preprocess, photographs, lambda image: theirs(image).numpy().transpose(1, 2, 0))
