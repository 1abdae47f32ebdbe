"""Checkpoints of small teachers with random parameters."""

import pathlib

import jax
import numpy as np
import tiny

from vit_jax.data.preprocess import Preprocess
from vit_jax.models.base import Architecture, ModelConfig
from vit_jax.pretrained.base import FORMATS, Link, Pretrained


def write(
  workdir: pathlib.Path,
  model: ModelConfig | None = None,
  *,
  image_size=(8, 8),
  channels=1,
  num_classes=10,
  preprocess: Preprocess | None = None,
  class_names: tuple[str, ...] | None = None,
  link: Link = 'softmax',
) -> str:
  """Writes a run at step 0; its path."""
  architecture = Architecture((model or tiny.options()).resolved(), image_size, channels, num_classes)
  _, params = tiny.build(
    architecture.model, image_size=image_size, channels=channels, num_classes=num_classes
  )
  preprocess = preprocess or Preprocess(image_size, channels)
  params = jax.tree.map(np.asarray, params)
  FORMATS['run']().write(Pretrained(architecture, params, preprocess, class_names, link=link), workdir)
  return str(workdir)
