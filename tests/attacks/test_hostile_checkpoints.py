"""Checkpoints made to exhaust memory or time, to reach other files, or to be read as what they are not.

All are read in one process with little memory; each must end in one sentence after five seconds of computing at most.
"""

import dataclasses
import pathlib
from typing import Any

import limited
import numpy as np
import pytest
from hostile_files import FILES, OTHERS
from hostile_folders import FOLDERS

from vit_jax.config import EfficientNetConfig, ViTConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.models.base import Architecture
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import Pretrained

READER = pathlib.Path(__file__).with_name('read_checkpoints.py')
CASES = FOLDERS | FILES | OTHERS


@pytest.fixture(scope='module')
def sound(tmp_path_factory) -> pathlib.Path:
  """A small model in every format."""
  folder = tmp_path_factory.mktemp('sound')
  sizes: dict[str, Any] = {'patch': 8, 'width': 32, 'mlp_dim': 64, 'depth': 2, 'heads': 4}
  model = ViTConfig(variant='custom', **sizes)
  dinov2 = dataclasses.replace(model, layer_scale=0.1, register_tokens=2)
  models = dict.fromkeys(('vit', 'timm', 'npz', 'run'), model) | {
    'dinov2': dinov2,
    'efficientnet': EfficientNetConfig('custom', width_multiplier=0.5, depth_multiplier=0.3),
    'timm_efficientnet': EfficientNetConfig('B0'),
  }
  for kind, model in models.items():
    architecture = Architecture(model, (16, 16), 3, 3)
    rng = np.random.default_rng(0)
    params = {
      path: rng.normal(size=leaf.shape).astype(np.float32) for path, leaf in architecture.shapes().items()
    }
    pretrained = Pretrained(architecture, pytrees.unflatten(params), Preprocess((16, 16)))
    writer, _ = formats.written_by(kind, pretrained)
    writer.write(pretrained, folder / ('vit.npz' if kind == 'npz' else kind))
    formats.read(folder / ('vit.npz' if kind == 'npz' else kind))
  return folder


@pytest.fixture(scope='module')
def outcomes(sound, tmp_path_factory) -> dict[str, tuple[str, str, float]]:
  """Case -> (what came of reading it, the sentence, seconds)."""
  paths = {'sound': str(sound / 'vit')}
  for name, (make, _) in CASES.items():
    paths[name] = str(make(tmp_path_factory.mktemp('case'), sound))
  found, errors = limited.outcomes_of(READER, paths, tmp_path_factory.mktemp('cases'), XLA_FLAGS='')
  assert found.get('sound', ('none',))[0] == 'read', errors
  return found


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_hostile_checkpoint_is_one_sentence_in_bounded_time_and_memory(outcomes, name):
  limited.assert_refused(outcomes, name, CASES[name][1])
