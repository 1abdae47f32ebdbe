"""Files of big_vision, against its Vision Transformer written out with Flax's Linen, whose layers it uses."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from released_files import read
from transformers_peers import make_ours

from vit_jax.foundation.errors import UserError

pytestmark = pytest.mark.slow

WIDTH, PATCH, HEADS, DEPTH = 16, 8, 2, 2


class Mlp(nn.Module):
  @nn.compact
  def __call__(self, x):
    hidden = nn.gelu(nn.Dense(40)(x))
    return nn.Dense(WIDTH)(hidden)


class Block(nn.Module):
  @nn.compact
  def __call__(self, x, _=None):
    y = nn.LayerNorm()(x)
    x = x + nn.MultiHeadDotProductAttention(num_heads=HEADS)(y, y)
    y = nn.LayerNorm()(x)
    return x + Mlp(name='MlpBlock_0')(y), None


class Encoder(nn.Module):
  scan: bool

  @nn.compact
  def __call__(self, x):
    if self.scan:
      blocks = nn.scan(Block, variable_axes={'params': 0}, split_rngs={'params': True}, length=DEPTH)
      x, _ = blocks(name='encoderblock')(x, None)
    else:
      for number in range(DEPTH):
        x, _ = Block(name=f'encoderblock_{number}')(x)
    return nn.LayerNorm(name='encoder_norm')(x)


class MapHead(nn.Module):
  @nn.compact
  def __call__(self, x):
    probe = self.param('probe', nn.initializers.xavier_uniform(), (1, 1, WIDTH))
    x = nn.MultiHeadDotProductAttention(num_heads=HEADS)(jnp.tile(probe, [len(x), 1, 1]), x)
    return (x + Mlp(name='MlpBlock_0')(nn.LayerNorm()(x)))[:, 0]


def waves(rows: int, columns: int) -> np.ndarray:
  """Of the grid, (1, N, D), as MoCo v3."""
  omega = 10_000.0 ** -(np.arange(WIDTH // 4) / (WIDTH // 4 - 1))
  places = [np.outer(axis.ravel(), omega) for axis in np.mgrid[:rows, :columns][::-1]]
  return np.concatenate([wave(place) for place in places for wave in (np.sin, np.cos)], axis=1)[None]


class BigVision(nn.Module):
  pool: str
  learned: bool = True
  scan: bool = False
  classes: int = 5

  @nn.compact
  def __call__(self, images):
    x = nn.Conv(WIDTH, (PATCH, PATCH), strides=(PATCH, PATCH), padding='VALID', name='embedding')(images)
    n, h, w, c = x.shape
    x = x.reshape(n, h * w, c)
    normal = nn.initializers.normal(1.0)
    x += self.param('pos_embedding', normal, (1, h * w, c)) if self.learned else waves(h, w)
    if self.pool == 'tok':
      x = jnp.concatenate([jnp.tile(self.param('cls', normal, (1, 1, c)), [n, 1, 1]), x], axis=1)
    x = Encoder(self.scan, name='Transformer')(x)
    if self.pool == 'map':
      x = MapHead(name='MAPHead_0')(x)
    elif self.pool != 'none':
      x = x[:, 0] if self.pool == 'tok' else x.mean(axis=1)
    return nn.Dense(self.classes, name='head')(x) if self.classes else x


# The model, what is before its names, and what else lies in the file.
CASES = {
  'tok': (BigVision('tok'), '', ()),
  'gap, sines': (BigVision('gap', learned=False), 'params/', ()),
  'map': (BigVision('map'), '', ()),
  'SigLIP': (BigVision('map', classes=0), 'params/img/', ('params/t', 'params/b', 'params/txt/head/bias')),
  'SigLIP by a scan': (BigVision('map', classes=0, scan=True), 'img/', ('t', 'b', 'txt/head/bias')),
  'PaliGemma': (BigVision('none', scan=True), 'params/img/', ('params/llm/final_norm/scale',)),
  'CapPa': (BigVision('gap', classes=0), 'encoder/', ('decoder/LayerNorm/bias', 'pos_embedding_decoder')),
}


@pytest.mark.parametrize('case', CASES)
def test_file_of_big_vision_is_read(case, tmp_path):
  peer, prefix, beside = CASES[case]
  images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
  rng = np.random.default_rng(1)
  shapes = jax.eval_shape(peer.init, jax.random.key(0), images)
  params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 3, shapes)
  tensors = {
    prefix + name: leaf for name, leaf in traverse_util.flatten_dict(params['params'], sep='/').items()
  }
  tensors |= {name: np.ones(2, np.float32) for name in beside}
  np.savez(tmp_path / 'model.npz', **tensors)
  pretrained = read(tmp_path / 'model.npz', image_size=(32, 32))
  with jax.default_matmul_precision('highest'):
    ours = make_ours(pretrained)
    found = ours(images) if peer.classes else ours.head_input(ours.features(images))
    expected = jax.jit(peer.apply)(params, images)
  np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
  del tensors[f'{prefix}Transformer/encoder_norm/scale']
  np.savez(tmp_path / 'damaged.npz', **tensors)
  with pytest.raises(UserError, match='no tensor Transformer/encoder_norm/scale'):
    read(tmp_path / 'damaged.npz', image_size=(32, 32))
