"""Patches of several sizes: what one network computes of each, and which of them a step has."""

from typing import Any

import jax
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx

import vit_jax
from vit_jax.config import (
  ClassificationEvaluatorConfig,
  Config,
  DataConfig,
  ScheduleConfig,
  TensorBoardConfig,
)
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.sources import open_source
from vit_jax.foundation.errors import UserError
from vit_jax.models import flexible_patches
from vit_jax.models.base import Architecture
from vit_jax.models.position_resize import resize
from vit_jax.pretrained import formats
from vit_jax.pretrained.adapt import _with_patches
from vit_jax.pretrained.base import Pretrained
from vit_jax.training import loop
from vit_jax.training.evaluate_checkpoint import evaluate_newest

SIZES = (2, 4, 8)
OPTIONS = {'patch': 4, 'patch_sizes': SIZES, 'position': 'learned'}


@pytest.mark.parametrize('patch', SIZES)
def test_each_size_computes_what_numpy_does_with_a_kernel_and_positions_of_its_own(patch):
  graphdef, params = tiny.build(tiny.options(**OPTIONS), image_size=(16, 8))
  model = nnx.merge(graphdef, params)
  flexible_patches.use(model, patch)
  x = tiny.images(image_size=(16, 8))
  with jax.default_matmul_precision('highest'):
    found = model(x)
  kernel = params['patch_embedding']['kernel']
  assert kernel.shape[:2] == (8, 8)
  positions = np.asarray(params['position_embedding'])[0]
  resized = resize(positions[1:], (4, 2), (16 // patch, 8 // patch), 'bilinear')
  own_kernel = _with_patches(np.asarray(kernel), patch)  # which test_adapt.py compares with timm's
  own: Any = params | {
    'patch_embedding': params['patch_embedding'] | {'kernel': own_kernel},
    'position_embedding': np.concatenate([positions[:1], resized])[None],
  }
  np.testing.assert_allclose(found, numpy_vit.forward(own, x)['logits'], atol=1e-4)


@pytest.mark.nightly
def test_a_run_evaluates_each_size_as_load_gives_it(tmp_path):
  model = tiny.options(**OPTIONS | {'patch': 2, 'width': 16, 'depth': 1, 'pool': 'gap'})
  evaluators: dict[str, Any] = {
    f'patch_{size}': ClassificationEvaluatorConfig(split='test', patch=size) for size in SIZES
  }
  data = DataConfig(source='digits', image_size=(8, 8), channels=1)
  schedule = ScheduleConfig(learning_rate=0.01, warmup='0 steps')
  run = Config(
    total='20 steps',
    batch_size=64,
    model=model,
    data=data,
    evaluators=evaluators,
    schedule=schedule,
    tensorboard=TensorBoardConfig(pictures=False),
  )
  loop.train(run, tmp_path)
  scores = evaluate_newest(run, tmp_path)
  source = open_source('digits', 'test', data=data)
  records = [source[number] for number in range(len(source))]
  images = np.stack([np.asarray(record.image) for record in records]).reshape(-1, 8, 8, 1) / 127.5 - 1
  labels = np.array([record.label for record in records])
  for size in SIZES:
    loaded = vit_jax.load(tmp_path, patch=size)
    assert vars(loaded.module)['patch_embedding'].kernel.shape[:2] == (size, size)
    right = np.asarray(loaded(images.astype(np.float32))).argmax(axis=-1) == labels
    assert right.mean() == pytest.approx(scores[f'patch_{size}/accuracy'], abs=0.004)
  assert len({scores[f'patch_{size}/loss'] for size in SIZES}) == 3


@pytest.mark.parametrize('kind', ['timm', 'vit', 'npz'])
def test_files_of_other_projects_hold_one_size_and_compute_as_before(kind, tmp_path):
  config = tiny.options(**OPTIONS, activation='gelu')
  graphdef, params = tiny.build(config, image_size=(16, 16))
  architecture = Architecture(config, (16, 16), 3, 5)
  pretrained = Pretrained(
    architecture, jax.tree.map(np.asarray, params), Preprocess.from_range((16, 16), -1, 1)
  )
  with pytest.raises(UserError, match=r'patch_sizes|patches of one size'):
    formats.written_by(kind, pretrained)
  one_size = formats.to_write(kind, pretrained)
  assert one_size.notes == ('Of patches of several sizes, those of 4 pixels are written.',)
  file = tmp_path / ('model.npz' if kind == 'npz' else 'model')
  formats.written_by(kind, one_size)[0].write(one_size, file)
  told: Any = {'activation': 'gelu'} if kind == 'npz' else {}
  x = tiny.images(image_size=(16, 16))
  found = vit_jax.load(file, **told)(x)
  with jax.default_matmul_precision('highest'):
    np.testing.assert_allclose(found, nnx.merge(graphdef, params)(x), atol=1e-5)


def test_a_size_that_does_not_divide_the_images_is_refused_before_the_first_step(tmp_path):
  run = Config(
    total='2 steps',
    batch_size=8,
    model=tiny.options(**OPTIONS),
    data=DataConfig(source='digits', image_size=(8, 8), channels=1),
    evaluators={'test': ClassificationEvaluatorConfig(split='test', patch=3)},
  )
  with pytest.raises(
    UserError, match=r'^config\.evaluators\.test\.patch: the image size \(8, 8\) does not divide'
  ):
    loop.train(run, tmp_path)
  assert not (tmp_path / 'metrics.jsonl').exists()


def test_every_step_draws_its_size_by_its_number():
  key = jax.random.key(0)
  drawn = [int(flexible_patches.draw(key, step, 3)) for step in range(60)]
  assert np.bincount(drawn, minlength=3).min() > 8
  assert drawn == [int(flexible_patches.draw(key, step, 3)) for step in range(60)]


@pytest.mark.parametrize('changes', [{'pool': 'none'}, {'pool': 'gap', 'axial': True}, {'mlp': 'local'}])
def test_models_of_one_size_are_refused(changes):
  with pytest.raises(UserError, match=r'config\.model\.patch_sizes is \(2, 4, 8\), and the model has'):
    tiny.options(**OPTIONS | changes).check('config.model')
