"""The picture of `vit_jax.contact_sheet`: the same images under each level of augmentation."""

import dataclasses

import cv2
import jax
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vit_jax.data import augment_policy, on_device
from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.data.sources.base import Source

ACROSS = 8  # images along a side of a level's square
_CELL = 96  # pixels along the longer side of an image
_TITLE = 28  # pixels above a square
_GAP = 16  # pixels between squares
_COLUMNS = 4  # squares beside each other


def levels(data: DataConfig) -> dict[str, DataConfig]:
  """Maps the title of each square to its options: each level, 3-Augment, and `data` if it is another one."""
  result = {}
  for level in (*augment_policy.LEVELS, '3augment'):
    result[_title(level)] = dataclasses.replace(data, augment=level, mixup=None, cutmix=0.0)
  if data not in result.values():
    title = f'this config: {data.augment}'
    if data.mixup:
      title += f', mixup {data.mixup}'
    if data.cutmix:
      title += f', cutmix {data.cutmix}'
    result[title] = data
  return result


def _title(level: str) -> str:
  """'medium1: randaugment(2,15), mixup 0.2'."""
  title = level
  for step in augment_policy.parse(level):
    if step.name != level:
      title += f': {step.name}({",".join(f"{number:g}" for number in step.arguments)})'
  alpha = augment_policy.mixup(level)
  return f'{title}, mixup {alpha}' if alpha else title


def training_images(source: Source, data: DataConfig, seed: int) -> np.ndarray:
  """The first images of a run, as the model gets them, those of any shape in `data.image_size`: uint8 (64, H, W, C)."""
  data = dataclasses.replace(data, repeats=1, max_patches=())
  mesh = jax.sharding.Mesh(np.array(jax.local_devices()[:1]), ('data',))
  pipeline = TrainPipeline(
    source,
    data,
    batch_size=ACROSS**2,
    seed=seed,
    sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data')),
  )
  as_bytes = dataclasses.replace(data, mean=(0.0,), std=(1 / 255,))
  batch = on_device.prepare_training(pipeline.batch(0), as_bytes, jax.random.key(seed))
  return np.asarray(batch['image']).round().astype(np.uint8)


def draw(squares: dict[str, np.ndarray]) -> Image.Image:
  """Draws squares of 8 × 8 images, four beside each other: title -> uint8 (64, H, W, C)."""
  arrays = {title: _square(images) for title, images in squares.items()}
  height, width = next(iter(arrays.values())).shape[:2]
  columns = min(len(arrays), _COLUMNS)
  rows = -(-len(arrays) // columns)
  picture = Image.new(
    'RGB', (columns * (width + _GAP) + _GAP, rows * (height + _TITLE + _GAP) + _GAP), 'white'
  )
  pen, font = ImageDraw.Draw(picture), ImageFont.load_default(20)
  for number, (title, array) in enumerate(arrays.items()):
    left = _GAP + number % columns * (width + _GAP)
    top = _GAP + number // columns * (height + _TITLE + _GAP)
    pen.text((left, top), title, 'black', font)
    picture.paste(Image.fromarray(array), (left, top + _TITLE))
  return picture


def _square(images: np.ndarray) -> np.ndarray:
  """Images (64, H, W, C) as one picture (8 h, 8 w, 3), each shrunk, or enlarged by a whole number."""
  scale, interpolation = _CELL / max(images.shape[1:3]), cv2.INTER_AREA
  if scale >= 1:
    scale, interpolation = scale // 1, cv2.INTER_NEAREST
  cells = np.stack(
    [cv2.resize(image, None, fx=scale, fy=scale, interpolation=interpolation) for image in images]
  )
  cells = np.broadcast_to(cells.reshape(*cells.shape[:3], -1), (*cells.shape[:3], 3))
  _, height, width, _ = cells.shape
  square = cells.reshape(ACROSS, ACROSS, height, width, 3).transpose(0, 2, 1, 3, 4)
  return np.ascontiguousarray(square.reshape(ACROSS * height, ACROSS * width, 3))
