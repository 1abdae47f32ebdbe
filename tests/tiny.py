"""Small models for the tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models.base import Architecture, ModelConfig
from vit_jax.models.dino import DinoConfig
from vit_jax.models.efficientnet import EfficientNetConfig
from vit_jax.models.mae import MaeConfig
from vit_jax.models.mixer import MixerConfig
from vit_jax.models.moco import MocoConfig
from vit_jax.models.resnet import ResNetConfig
from vit_jax.models.two_towers import TwoTowersConfig
from vit_jax.models.vit_config import ViTConfig

SIZES = {'patch': 4, 'width': 32, 'mlp_dim': 48, 'depth': 2, 'heads': 4}


def options(**changes) -> ViTConfig:
  """A Vision Transformer of width 32 with two blocks."""
  return ViTConfig(variant='custom', **SIZES | changes)


def mae(**changes) -> MaeConfig:
  """A masked autoencoder of width 32 with two blocks, and a decoder of width 24 with three."""
  decoder = {'decoder_width': 24, 'decoder_depth': 3, 'decoder_heads': 3}
  return MaeConfig(variant='custom', **SIZES | decoder | changes)


def dino(**changes) -> DinoConfig:
  """A Vision Transformer of width 32 with two blocks, and 40 prototypes."""
  projection = {'prototypes': 40, 'projection_hidden': 24, 'projection_width': 16}
  return DinoConfig(variant='custom', **SIZES | projection | changes)


def moco(**changes) -> MocoConfig:
  """A Vision Transformer of width 32 with two blocks, a projection and a predictor."""
  sizes = {'patch': 4, 'width': 32, 'mlp_dim': 48, 'depth': 2, 'heads': 4}
  return MocoConfig(variant='custom', **{**sizes, 'projection_hidden': 24, 'projection_width': 16, **changes})


def two_towers(**changes) -> TwoTowersConfig:
  """Two towers of two blocks: of images of width 32, of texts of width 24."""
  text = {'text_width': 24, 'text_heads': 3, 'text_length': 12}
  return TwoTowersConfig(variant='custom', **SIZES | text | changes)


def mixer(**changes) -> MixerConfig:
  """An MLP-Mixer of width 32 with two blocks."""
  sizes = {'patch': 4, 'width': 32, 'mlp_dim': 48, 'depth': 2, 'tokens_mlp_dim': 24}
  return MixerConfig(variant='custom', **{**sizes, **changes})


def resnet(**changes) -> ResNetConfig:
  """A ResNet of two stages, with one bottleneck and with two."""
  return ResNetConfig(**{'variant': 'custom', 'blocks': (1, 2), 'width': 32, **changes})


def efficientnet(**changes) -> EfficientNetConfig:
  """An EfficientNet of eight blocks, of which the fifth and the sixth are one stage; nothing is dropped."""
  sizes = {'width_multiplier': 0.5, 'depth_multiplier': 0.3, 'dropout': 0.0, 'stochastic_depth': 0.0}
  return EfficientNetConfig(**{'variant': 'custom', **sizes, **changes})


def build(
  model: ModelConfig | None = None,
  *,
  image_size=(12, 8),
  channels=3,
  num_classes=5,
  activation_sharding: jax.sharding.NamedSharding | None = None,
):
  """(graphdef, parameters as a nested dict), all of them random, so that each matters."""
  architecture = Architecture(model or options(), image_size, channels, num_classes)
  network = nnx.eval_shape(lambda: architecture.build(nnx.Rngs(0), activation_sharding))
  graphdef, shapes = nnx.split(network)
  rng = np.random.default_rng(0)

  def random(path, leaf):
    center = 1 if path[-1].key in ('scale', 'var') else 0
    return jnp.asarray(center + 0.15 * rng.standard_normal(leaf.shape), leaf.dtype)

  return graphdef, jax.tree_util.tree_map_with_path(random, nnx.to_pure_dict(shapes))


def count(model: ModelConfig, num_classes: int) -> int:
  """Parameters of a model of 224 x 224 pixels, running statistics apart, without memory for them."""
  network = nnx.eval_shape(lambda: Architecture(model, (224, 224), 3, num_classes).build(nnx.Rngs(0)))
  return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(network, nnx.Param)))


def images(batch=3, image_size=(12, 8), channels=3):
  """(B, H, W, C) float32 in [-1, 1]."""
  values = np.random.default_rng(1).uniform(-1, 1, (batch, *image_size, channels))
  return jnp.asarray(values, jnp.float32)


def keys(batch=3, seed=0):
  """(B,) typed keys."""
  return jax.random.split(jax.random.key(seed), batch)


def apply(graphdef, params, x, keys=None):
  """The logits, compiled once for a network and a shape, at the highest matmul precision."""
  with jax.default_matmul_precision('highest'):
    return _logits(graphdef, params, x, keys)


@functools.partial(jax.jit, static_argnums=0)
def _logits(graphdef, params, x, keys):
  return nnx.merge(graphdef, params)(x, keys=keys)


def equations(jaxpr, times=1):
  """(equation, how often it runs) of a jaxpr and of all jaxprs in it."""
  for equation in jaxpr.eqns:
    yield equation, times
    inner = times * equation.params['length'] if equation.primitive.name == 'scan' else times
    for value in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda v: hasattr(v, 'eqns')):
      value = getattr(value, 'jaxpr', value)
      if hasattr(value, 'eqns'):
        yield from equations(value, inner)
