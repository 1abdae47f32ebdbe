"""Training runs as checkpoints: npz -> run -> npz bit for bit, and what a run tells of itself."""

import dataclasses

import numpy as np
import pytest
from released_files import assert_same, path, read, tensors, write, write_run

import vit_jax
from vit_jax import config as c
from vit_jax import pytrees
from vit_jax.checkpoint.manager import Manager
from vit_jax.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained.preprocess import Preprocess

FIXTURES = ['b_vit_gap', 'c_vit_token_rep32', 'd1_hybrid_1_1_w05']


@pytest.mark.parametrize('name', FIXTURES)
def test_npz_run_npz_is_bit_exact(golden, tmp_path, name):
  write_run(read(path(golden, name)), tmp_path / 'run')
  back = read(tmp_path / 'run')
  write(back, tmp_path / 'back.npz')
  assert_same(path(golden, name), tmp_path / 'back.npz')
  assert read(tmp_path / 'run' / 'checkpoints' / '0').architecture == back.architecture


def test_mixer_and_model_without_head_come_back(golden, tmp_path):
  write_run(read(path(golden, 'e_mixer', 'linen')), tmp_path / 'mixer')
  write(read(tmp_path / 'mixer'), tmp_path / 'back.npz')
  assert_same(path(golden, 'e_mixer', 'linen'), tmp_path / 'back.npz')
  source = tensors(path(golden, 'b_vit_gap'))
  np.savez(tmp_path / 'x.npz', **{key: a for key, a in source.items() if not key.startswith('head/')})
  write_run(read(tmp_path / 'x.npz'), tmp_path / 'headless')
  assert read(tmp_path / 'headless').architecture.num_classes == 0


def test_options_preprocessing_and_class_names_come_back(golden, tmp_path):
  preprocess = Preprocess(
    (32, 32), mean=(0.485, 0.456, 0.406), std=(0.2, 0.3, 0.4), shorter=36, antialias=True
  )
  released = read(path(golden, 'a_vit_token'), gelu='erf', norm_epsilon=1e-12)
  model = released.architecture.model.with_position_resize('bicubic')
  written = dataclasses.replace(
    released,
    architecture=dataclasses.replace(released.architecture, model=model),
    preprocess=preprocess,
    class_names=tuple('abcdefghij'),
  )
  write_run(written, tmp_path / 'run')
  model = vit_jax.load(tmp_path / 'run')
  assert model.class_names == tuple('abcdefghij')
  assert model.preprocess == preprocess
  back = read(tmp_path / 'run')
  assert back.architecture == written.architecture
  assert back.architecture.model.position_table('position_embedding').resize == 'bicubic'


def test_trained_run_tells_its_preprocessing_and_falls_back_from_damage(tmp_path):
  """Its config says how images are prepared; sizes come from the variant."""
  config = c.Config(
    model=c.ViTConfig(variant='Ti/16', depth=1, width=12, heads=3, mlp_dim=8),
    data=c.DataConfig(image_size=(32, 48), value_range=(0.0, 1.0), channels=1),
    evaluators={'val': c.ClassificationEvaluatorConfig(crop='central', resize=40)},
  )
  shapes = Architecture(config.model, (32, 48), 1, 2).shapes()
  rng = np.random.default_rng(0)
  params = {name: rng.standard_normal(leaf.shape).astype(np.float32) for name, leaf in shapes.items()}
  meta = {'config': c.as_json(config), 'class_names': ['cat', 'dog'], 'examples': 9}
  with Manager(tmp_path / 'run/checkpoints', config.checkpoint) as manager:
    for step in (3, 7):
      params['head/bias'] = np.full(2, step, np.float32)
      manager.save(step, {'params': pytrees.unflatten(params)}, meta)
  model = vit_jax.load(tmp_path / 'run')
  assert model.class_names == ('cat', 'dog')
  np.testing.assert_array_equal(model.module.head.bias[...], [7, 7])
  np.testing.assert_array_equal(vit_jax.load(tmp_path / 'run/checkpoints/3').module.head.bias[...], [3, 3])
  images = model.preprocess([np.full((80, 160, 3), 255, np.uint8)])
  assert images.shape == (1, 32, 48, 1)
  np.testing.assert_allclose(images, 1, atol=1e-6)
  assert model.preprocess.shorter == 40
  with pytest.raises(UserError, match=r'There is no checkpoint .*/5; did you mean .*/7'):
    vit_jax.load(tmp_path / 'run/checkpoints/5')
  # Arrays of the newest step damaged, its meta sound: the one before is loaded, and nothing is moved.
  for file in (tmp_path / 'run/checkpoints/7/params').rglob('*'):
    if file.is_file() and file.parent.name == 'd':
      file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
  np.testing.assert_array_equal(vit_jax.load(tmp_path / 'run').module.head.bias[...], [3, 3])
  assert (tmp_path / 'run/checkpoints/7').is_dir()
  for option in ({'pool': 'gap'}, {'gelu': 'erf'}):
    with pytest.raises(UserError, match=f'knows .*leave {next(iter(option))} out'):
      vit_jax.load(tmp_path / 'run', **option)


def test_directory_that_is_no_checkpoint_is_refused(golden, tmp_path):
  (tmp_path / 'empty').mkdir()
  with pytest.raises(UserError, match='is neither a training run'):
    vit_jax.load(tmp_path / 'empty')
  (tmp_path / 'begun/checkpoints').mkdir(parents=True)
  with pytest.raises(UserError, match='There is no checkpoint in'):
    vit_jax.load(tmp_path / 'begun')
  (tmp_path / 'empty/notes.txt').touch()
  with pytest.raises(UserError, match='is not empty'):
    write_run(read(path(golden, 'b_vit_gap')), tmp_path / 'empty')
  with pytest.raises(UserError, match="pool is 'none'"):
    write_run(read(path(golden, 'a4_vit_token_unpooled'), pool='none'), tmp_path / 'run')
