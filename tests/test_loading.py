"""`vit_jax.load`: what the module can do, and what it costs."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from released_files import path, tensors

import vit_jax
from vit_jax.errors import UserError


def test_importing_vit_jax_does_not_start_jax():
  code = 'import sys, vit_jax; assert "jax" not in sys.modules; vit_jax.load; assert "jax" in sys.modules'
  subprocess.run([sys.executable, '-c', code], check=True, timeout=120)


def test_pictures_of_every_kind(golden):
  model = vit_jax.load(path(golden, 'a_vit_token'))
  rgb = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
  images = [
    rgb,
    rgb.convert('L'),
    rgb.convert('RGBA'),
    rgb.convert('P'),
    rgb.convert('CMYK'),
    rgb.convert('1'),
  ]
  prepared = model.preprocess([*images, np.asarray(rgb), np.asarray(rgb.convert('L'))])
  assert prepared.shape == (8, 32, 32, 3) and prepared.dtype == np.float32
  assert prepared.min() >= -1 and prepared.max() <= 1
  np.testing.assert_array_equal(prepared[6], prepared[0])
  np.testing.assert_array_equal(prepared[2], prepared[0])
  np.testing.assert_array_equal(prepared[7], prepared[1])
  gray = np.asarray(model.preprocess([rgb.convert('L')])[0])
  np.testing.assert_array_equal(gray[..., 0], gray[..., 2])
  assert model(prepared).shape == (8, 10)


@pytest.mark.parametrize('case', ['down', 'up', 'odd'])
def test_preprocessing_of_the_original(golden, case):
  cases = tensors(golden / 'j_preprocess.npz')
  image, expected = cases[f'{case}/image'], cases[f'{case}/eval']
  model = vit_jax.load(path(golden, 'a_vit_token'))
  preprocess = model.preprocess.resized(expected.shape[:2])
  np.testing.assert_allclose(preprocess([image])[0], expected, rtol=0, atol=1e-5)


def test_another_size(golden):
  model = vit_jax.load(path(golden, 'a_vit_token'), image_size=(48, 24))
  images = model.preprocess([Image.new('RGB', (100, 100))])
  assert images.shape == (1, 48, 24, 3)
  assert model(images).shape == (1, 10)
  assert vit_jax.load(path(golden, 'a_vit_token'), image_size=48).position_embedding.shape == (1, 37, 64)
  with pytest.raises(UserError, match='does not divide into patches of 8'):
    vit_jax.load(path(golden, 'a_vit_token'), image_size=50)


def test_position_resize_is_an_option(golden):
  load = lambda method: vit_jax.load(path(golden, 'a_vit_token'), image_size=48, position_resize=method)
  linear, bicubic = (load(method).position_embedding[...] for method in ('linear', 'bicubic'))
  assert np.abs(linear - bicubic).max() > 1e-3


def test_the_head(golden):
  images = tensors(golden / 'a_vit_token.io.npz')['images']
  kept = vit_jax.load(path(golden, 'a_vit_token'), num_classes=10)
  assert kept.head.kernel[...].any()
  new = vit_jax.load(path(golden, 'a_vit_token'), num_classes=3)
  assert not np.asarray(new(images)).any() and new(images).shape == (2, 3)
  assert new.class_names is None


def test_dtype(golden):
  io = tensors(golden / 'a_vit_token.io.npz')
  model = vit_jax.load(path(golden, 'a_vit_token'), dtype=jnp.bfloat16)
  assert model.features(io['images']).dtype == jnp.bfloat16
  assert model.head.kernel.dtype == jnp.float32
  difference = np.abs(np.asarray(model(io['images'])) - io['logits']).max()
  assert 1e-4 < difference < 0.2


def test_layers_and_transformations(golden):
  """An NNX module like any other: under jit, grad and split."""
  images = tensors(golden / 'a_vit_token.io.npz')['images']
  model = vit_jax.load(path(golden, 'a_vit_token'))
  layers = [model.features(images, layer=layer) for layer in (0, 1, None)]
  assert all(layer.shape == (2, 17, 64) for layer in layers)
  np.testing.assert_allclose(model.norm(layers[1]), layers[2], atol=1e-5)
  graphdef, params = nnx.split(model)
  loss = lambda params: nnx.merge(graphdef, params)(images).sum()
  gradients = jax.jit(jax.grad(loss))(params)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
  np.testing.assert_allclose(jax.jit(lambda m, x: m(x))(model, images), model(images), atol=1e-4)


def test_what_became_of_the_tensors_is_said(golden, caplog):
  vit_jax.load(path(golden, 'c_vit_token_rep32'))
  assert not caplog.messages
  vit_jax.load(path(golden, 'c_vit_token_rep32'), num_classes=3)
  assert 'ignored: head/bias (10,), head/kernel (32, 10), representation/bias' in caplog.text
