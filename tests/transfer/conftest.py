"""The checkpoint that is transferred."""

import pathlib

import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax import config as c
from vit_jax.data.preprocess import Preprocess
from vit_jax.models.base import Architecture
from vit_jax.pretrained.base import FORMATS, Pretrained


@pytest.fixture
def checkpoint(tmp_path) -> pathlib.Path:
  """A run of a small model of 8 pixels and width 16, with random parameters."""
  model = c.ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2)
  architecture = Architecture(model, (8, 8), channels=3, num_classes=5)
  _, params = nnx.split(architecture.build(nnx.Rngs(0)))
  arrays = jax.tree.map(np.asarray, nnx.to_pure_dict(params))
  preprocess = Preprocess.from_range((8, 8), -1.0, 1.0)
  FORMATS['run']().write(Pretrained(architecture, arrays, preprocess), tmp_path / 'pretrained')
  return tmp_path / 'pretrained'
