"""The checkpoint that is transferred."""

import pathlib

import pytest
import teachers

from vit_jax.config import ViTConfig


@pytest.fixture
def checkpoint(tmp_path) -> pathlib.Path:
  """A run of a small model of 8 pixels and width 16, with random parameters."""
  model = ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2)
  teachers.write(tmp_path / 'pretrained', model, channels=3, num_classes=5)
  return tmp_path / 'pretrained'
