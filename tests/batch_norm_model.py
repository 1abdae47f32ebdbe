"""A small convolutional network with batch norm: a model that has state, in a config file outside the package."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from vit_jax import config as c
from vit_jax.models.base import (
  MODELS,
  Architecture,
  FirstLayer,
  Grid,
  Model,
  ModelConfig,
  ShardingRules,
  patch_grid,
)
from vit_jax.models.batch_norm import BatchNorm
from vit_jax.models.flops import Layer
from vit_jax.models.layers import initial_head
from vit_jax.models.scanned_blocks import constrain

NAME = 'normed'


@dataclasses.dataclass(frozen=True)
class NormedConfig(ModelConfig):
  """Two blocks of a convolution and batch norm, behind a first convolution with stride 2."""

  variant: str = 'custom'
  # Channels.
  width: int = 16
  # Of the running statistics.
  momentum: float = 0.9

  title: ClassVar[str] = 'a small network with batch norm'
  variants: ClassVar = {}
  sharding_rules: ClassVar[ShardingRules] = (
    (r'(root|block\d/conv)/kernel', ('fsdp',)),
    (r'block\d/norm/(scale|bias|mean|var)', ()),
    (r'head/kernel', ('fsdp', 'tensor')),
    (r'head/bias', ('tensor',)),
  )
  first_layer: ClassVar[FirstLayer] = FirstLayer('The first convolution', 'root/kernel')
  patch_pixels: ClassVar[int] = 2
  num_layers: ClassVar[int] = 2

  def build(self, architecture: Architecture, rngs: nnx.Rngs, sharding=None) -> Model:
    return Normed(self, architecture.channels, architecture.num_classes, rngs, sharding)

  def grid(self, image_size: tuple[int, int], option: str = 'config.data.image_size') -> Grid:
    return patch_grid(image_size, 1, stride=2, option=option)

  def layers(self, architecture: Architecture) -> list[Layer]:
    rows, columns = self.grid(architecture.image_size)
    kernels = 9 * architecture.channels * self.width + 2 * 9 * self.width**2
    return [
      Layer('blocks', (rows, columns, self.width), rows * columns * kernels),
      Layer('head', (architecture.num_classes,), self.width * architecture.num_classes),
    ]

  def describe(self) -> str:
    return f'Two convolutions of {self.width} channels with batch norm'


class Block(nnx.Module):
  """A residual convolution."""

  def __init__(self, config: NormedConfig, rngs: nnx.Rngs):
    width = config.width
    self.conv = nnx.Conv(width, width, (3, 3), use_bias=False, rngs=rngs)
    self.norm = BatchNorm(width, momentum=config.momentum, epsilon=1e-3)

  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    return x + jax.nn.swish(self.norm(self.conv(x), train=train))


class Normed(Model[NormedConfig]):
  def __init__(self, config: NormedConfig, channels: int, num_classes: int, rngs: nnx.Rngs, sharding):
    self.config = config
    self.sharding = sharding
    self.root = nnx.Conv(channels, config.width, (3, 3), 2, use_bias=False, rngs=rngs)
    self.block0 = Block(config, rngs)
    self.block1 = Block(config, rngs)
    self.head = initial_head(config.width, num_classes, config.head_bias, rngs)

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    return self.head(self.pool(self._tokens(images, train=keys is not None)))

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    return self._tokens(images, train=False, layers=None if layer in (None, -1) else layer + 1)

  def _tokens(self, images: jax.Array, *, train: bool, layers: int | None = None) -> jax.Array:
    x = self.root(images)
    for block in (self.block0, self.block1)[:layers]:
      x = constrain(block(x, train=train), self.sharding)
    return x.reshape(len(x), -1, self.config.width).astype(jnp.float32)


def options(**changes) -> c.Config:
  """Sixteen digits a step."""
  config = c.Config(
    total='40 steps',
    batch_size=16,
    model=NormedConfig(),
    data=c.DataConfig(source='digits', image_size=(8, 8), channels=1, flip=True),
    evaluators={'test': c.ClassificationEvaluatorConfig(split='test', every='20 steps')},
    schedule=c.ScheduleConfig(learning_rate=1e-2, warmup='2 steps'),
    ema=0.9,
    checkpoint=c.CheckpointConfig(every='5 steps'),
    log_every='3 steps',
  )
  return dataclasses.replace(config, **changes)


def get_config() -> ConfigDict:
  MODELS.register(NAME, NormedConfig)  # here, so that the import of a test changes nothing for others
  return c.to_config_dict(options())
