"""`vit_jax.load`: images to logits, other sizes, heads and dtypes, and the module inside."""

import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from processes import HUNG
from released_files import path, tensors

import vit_jax
from vit_jax.foundation.errors import UserError
from vit_jax.models.position_resize import PositionResize
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS


@pytest.mark.slow
def test_importing_vit_jax_does_not_start_jax():
  code = 'import sys, vit_jax; assert "jax" not in sys.modules; vit_jax.load; assert "jax" in sys.modules'
  subprocess.run([sys.executable, '-c', code], check=True, timeout=HUNG)


def test_images_of_every_mode_become_the_models_input(loaded):
  rgb = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
  images = [rgb, *(rgb.convert(mode) for mode in ('RGBA', 'L', 'P', 'CMYK', '1')), np.asarray(rgb)]
  prepared = loaded.preprocess(images)
  chex.assert_type(prepared, np.float32)
  assert prepared.min() >= -1 and prepared.max() <= 1
  for same in (1, 6):
    np.testing.assert_array_equal(prepared[same], prepared[0])
  np.testing.assert_array_equal(prepared[2][..., 0], prepared[2][..., 2])
  chex.assert_shape(loaded(prepared), (7, 10))


@pytest.mark.parametrize(
  ('method', 'images'),
  [
    ('__call__', 'photo.jpg'),
    ('features', Image.new('RGB', (32, 32))),
    ('embeddings', [Image.new('RGB', (32, 32))]),
    ('attention', np.zeros((32, 32, 3), np.float32)),
    ('hidden_states', np.zeros((1, 32, 32, 3), np.uint8)),
  ],
)
def test_images_that_were_not_prepared_are_refused_with_the_remedy(loaded, method, images):
  with pytest.raises(UserError, match=r'write model\(model.preprocess\(\[image, …\]\)\)'):
    getattr(loaded, method)(images)


@pytest.fixture(scope='module')
def loaded(golden):
  return vit_jax.load(path(golden, 'a_vit_token'))


def test_what_a_checkpoint_lacks_and_what_is_left_out_of_it_is_logged(golden, tmp_path, caplog):
  source = tensors(path(golden, 'b_vit_gap'))
  np.savez(tmp_path / 'x.npz', **{key: a for key, a in source.items() if not key.startswith('head/')})
  vit_jax.load(tmp_path / 'x.npz')
  assert caplog.text.count('has no head') == 1
  caplog.clear()
  vit_jax.load(tmp_path / 'x.npz', num_classes=3)
  assert 'has no head' not in caplog.text
  assert 'reinitialised: head/' in caplog.text and 'ignored' not in caplog.text
  vit_jax.load(path(golden, 'c_vit_token_rep32'), num_classes=3)
  assert 'ignored: head/bias (10,), head/kernel (32, 10), pre_logits/bias' in caplog.text


@pytest.mark.parametrize('case', ['down', 'up', 'odd'])
def test_preprocessing_equals_the_originals(golden, case):
  cases = tensors(golden / 'j_preprocess.npz')
  image, expected = cases[f'{case}/image'], cases[f'{case}/eval']
  model = vit_jax.load(path(golden, 'a_vit_token'))
  preprocess = model.preprocess.at(expected.shape[:2])
  np.testing.assert_allclose(preprocess([image])[0], expected, rtol=0, atol=1e-5)


# Format -> how its own project resizes positions.
RESIZES: dict[str, PositionResize] = {
  'npz': 'linear',
  'run': 'linear',
  'vit': 'bicubic',
  'timm': 'bicubic_antialias',
}


@pytest.mark.nightly(but='npz')
@pytest.mark.slow
@pytest.mark.parametrize('name', RESIZES)
def test_loading_for_a_size_and_calling_with_that_size_give_the_same_logits(golden, tmp_path, name):
  """There is one answer: `model.position_resize`, which is that of the checkpoint's own project."""
  pretrained = formats.read(path(golden, 'a_vit_token'))
  destination = tmp_path / ('x.npz' if name == 'npz' else 'checkpoint')
  FORMATS[name]().write(pretrained, destination)
  as_trained = vit_jax.load(destination)
  assert as_trained.config.position_resize == RESIZES[name]
  for size in ((48, 24), (16, 40)):
    images = np.random.default_rng(0).uniform(-1, 1, (2, *size, 3)).astype(np.float32)
    resized = vit_jax.load(destination, image_size=size)
    with jax.default_matmul_precision('highest'):
      np.testing.assert_allclose(resized(images), as_trained(images), atol=1e-5)
      other = vit_jax.load(destination, image_size=size, position_resize='bilinear')
      np.testing.assert_allclose(
        vit_jax.load(destination, position_resize='bilinear')(images), other(images), atol=1e-5
      )
      assert abs(other(images) - resized(images)).max() > 1e-4


def test_a_head_of_another_size_begins_at_zero(golden):
  images = tensors(golden / 'a_vit_token.io.npz')['images']
  kept = vit_jax.load(path(golden, 'a_vit_token'), num_classes=10)
  assert kept.module.head.kernel[...].any() and kept.num_classes == 10
  new = vit_jax.load(path(golden, 'a_vit_token'), num_classes=3)
  np.testing.assert_array_equal(new(images), np.zeros((2, 3)))
  assert new.class_names is None and new.num_classes == 3


@pytest.mark.slow
def test_bfloat16_computes_in_it_and_keeps_parameters_in_float32(golden):
  io = tensors(golden / 'a_vit_token.io.npz')
  model = vit_jax.load(path(golden, 'a_vit_token'), dtype='bfloat16')
  chex.assert_type(model.features(io['images']), jnp.bfloat16)
  chex.assert_type(model.module.head.kernel[...], jnp.float32)
  difference = np.abs(np.asarray(model(io['images'])) - io['logits']).max()
  assert 1e-4 < difference < 0.2


@pytest.mark.slow
def test_the_compiled_methods_are_those_of_the_module(golden):
  images = tensors(golden / 'a_vit_token.io.npz')['images']
  model = vit_jax.load(path(golden, 'a_vit_token'))
  module = model.module
  with jax.default_matmul_precision('highest'):
    tokens = module.features(images)
    for ours, expected in (
      (model(images), module(images)),
      (model.features(images), tokens),
      (model.embeddings(images), module.head_input(tokens)),
      (model.attention(images), module.attention(images)),
      (model.hidden_states(images), module.hidden_states(images)),
      (model.pool(tokens, 'gap'), tokens.mean(axis=1)),
    ):
      np.testing.assert_allclose(ours, expected, atol=1e-5)
  assert model.config is module.config
  count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module)))
  assert repr(model) == f'<{model.config.describe()}; {count:,} parameters, 10 classes>'


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    ({'activation': 'exact'}, "load.activation is 'exact'; choose one of ['gelu_tanh', 'gelu', "),
    ({'weights': 'best'}, "load.weights is 'best'; choose one of ['raw', 'ema']"),
    ({'norm_epsilon': -1e-6}, 'load.norm_epsilon is -1e-06'),
    ({'num_classes': -1}, 'load.num_classes is -1'),
    ({'image_size': 0}, 'load.image_size is 0'),
    ({'image_size': (32, 32, 3)}, 'load.image_size is'),
    ({'image_size': 33}, 'image_size (33, 33) does not divide into patches of 8 pixels'),
  ],
)
def test_argument_of_load_that_is_impossible_is_refused_by_its_name(golden, arguments, said):
  with pytest.raises(UserError) as error:
    vit_jax.load(path(golden, 'a_vit_token'), **arguments)
  assert said in str(error.value), error.value


@pytest.mark.slow
def test_arguments_of_load_may_be_of_numpy_and_jax(golden):
  file = path(golden, 'a_vit_token')
  found = vit_jax.load(file, image_size=np.int64(48), num_classes=np.int32(3), dtype=jnp.bfloat16)
  expected = vit_jax.load(file, image_size=(48, 48), num_classes=3, dtype='bfloat16')
  assert found.config == expected.config and found.preprocess == expected.preprocess
  assert vit_jax.load(file, image_size=[48, 32]).preprocess.size == (48, 32)
