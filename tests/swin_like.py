"""A model and an objective that vit_jax does not have, in a config file outside the package.

The model is like Swin (arXiv 2103.14030): attention inside windows that are shifted in every second block, and
patches that are merged between the stages. The objective is rotation prediction (arXiv 1803.07728).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from ml_collections import ConfigDict

from vit_jax.config import Config, DataConfig, FewShotEvaluatorConfig, to_config_dict
from vit_jax.models.base import MODELS, Architecture, Grid, Model, ModelConfig, ShardingRules
from vit_jax.models.flops import Layer
from vit_jax.models.layers import PatchEmbedding, initial_head
from vit_jax.models.parts.mlps import Mlp
from vit_jax.models.parts.norms import LayerNorm
from vit_jax.objectives.base import OBJECTIVES, Objective


@dataclasses.dataclass(frozen=True)
class SwinConfig(ModelConfig):
  """Two stages of two blocks each."""

  variant: str = 'custom'
  # Pixels along a side of a patch.
  patch: int = 1
  # Patches along a side of a window.
  window: int = 2
  # The size of a token of the first stage; the second has twice as much.
  width: int = 16
  # Heads of every block.
  heads: int = 2

  title: ClassVar[str] = 'a Swin Transformer'
  variants: ClassVar = {}
  any_image_size: ClassVar[bool] = False
  sharding_rules: ClassVar[ShardingRules] = (
    (r'.*(query_key_value|dense_in|merge)/kernel', ('fsdp', 'tensor')),
    (r'.*(out|dense_out)/kernel', ('tensor', 'fsdp')),
    (r'.*', ()),
  )

  def build(self, architecture: Architecture, rngs: nnx.Rngs, sharding=None) -> Model:
    return Swin(self, architecture, rngs)

  @property
  def patch_pixels(self) -> int:
    return self.patch

  @property
  def num_layers(self) -> int:
    return 4

  def describe(self) -> str:
    return f'Swin Transformer, 4 blocks of width {self.width} to {2 * self.width}'

  def layers(self, architecture: Architecture) -> list[Layer]:
    rows, columns = self.grid(architecture.image_size)
    tokens, products = rows * columns, 0
    for tokens, width in ((rows * columns, self.width), (rows * columns // 4, 2 * self.width)):
      products += 2 * tokens * (12 * width**2 + 2 * self.window**2 * width)
    embedding = rows * columns * self.patch**2 * architecture.channels * self.width
    return [
      Layer('patch_embedding', (rows * columns, self.width), embedding),
      Layer('stage', (tokens, 2 * self.width), products + tokens * 8 * self.width**2),
      Layer('head', (architecture.num_classes,), 2 * self.width * architecture.num_classes),
    ]


class Block(nnx.Module):
  """Attention inside windows, then an MLP."""

  def __init__(self, grid: Grid, width: int, shift: int, config: SwinConfig, rngs: nnx.Rngs):
    self.grid, self.shift, self.window, self.heads = grid, shift, config.window, config.heads
    self.attention_norm, self.mlp_norm = (LayerNorm(width, config.norm_epsilon) for _ in range(2))
    self.query_key_value = nnx.Linear(width, 3 * width, rngs=rngs)
    self.out = nnx.Linear(width, width, rngs=rngs)
    self.mlp = Mlp(width, 4 * width, gelu='tanh', rngs=rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    (rows, columns), size = self.grid, self.window
    y = self.attention_norm(x).reshape(len(x), rows, columns, -1)
    y = jnp.roll(y, (-self.shift, -self.shift), axis=(1, 2))
    y = y.reshape(len(x), rows // size, size, columns // size, size, -1).swapaxes(2, 3)
    windows = y.reshape(-1, size**2, y.shape[-1])
    query, key, value = jnp.split(self.query_key_value(windows), 3, axis=-1)
    heads = (*windows.shape[:-1], self.heads, -1)
    y = jax.nn.dot_product_attention(*(part.reshape(heads) for part in (query, key, value)))
    y = self.out(y.reshape(windows.shape)).reshape(len(x), rows // size, columns // size, size, size, -1)
    y = y.swapaxes(2, 3).reshape(len(x), rows, columns, -1)
    x = x + jnp.roll(y, (self.shift, self.shift), axis=(1, 2)).reshape(x.shape)
    return x + self.mlp(self.mlp_norm(x))


class Swin(Model[SwinConfig]):
  """Images to logits."""

  def __init__(self, config: SwinConfig, architecture: Architecture, rngs: nnx.Rngs):
    self.config = config
    grid, width = config.grid(architecture.image_size), config.width
    channels, num_classes = architecture.channels, architecture.num_classes
    half = (grid[0] // 2, grid[1] // 2)
    self.grid = grid
    self.patch_embedding = PatchEmbedding(config.patch, channels, width, dtype=jnp.float32, rngs=rngs)
    shifts = (0, config.window // 2)
    self.first = nnx.List([Block(grid, width, shift, config, rngs) for shift in shifts])
    self.merge = nnx.Linear(4 * width, 2 * width, rngs=rngs)
    self.second = nnx.List([Block(half, 2 * width, shift, config, rngs) for shift in shifts])
    self.norm = LayerNorm(2 * width, config.norm_epsilon)
    self.head = initial_head(2 * width, num_classes, config.head_bias, rngs)

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    return self.head(self.pool(self.features(images)))

  def features(self, images: jax.Array, layer: int | None = None) -> jax.Array:
    x = self.patch_embedding(images)
    for block in self.first:
      x = block(x)
    (rows, columns), width = self.grid, self.config.width
    x = x.reshape(len(x), rows // 2, 2, columns // 2, 2, width).swapaxes(2, 3)
    x = self.merge(x.reshape(len(x), -1, 4 * width))
    for block in self.second:
      x = block(x)
    return self.norm(x)


@dataclasses.dataclass(frozen=True)
class RotationObjective(Objective):
  """By how many quarters was the image turned?"""

  title: ClassVar[str] = 'rotation prediction'
  evaluators: ClassVar[tuple[str, ...]] = ('fewshot',)  # the head names no classes

  def loss_and_metrics(self, model, batch, keys, data):
    quarters = jax.vmap(lambda key: jax.random.randint(key, (), 0, 4))(keys)
    turned = jnp.stack([jnp.rot90(batch['image'], quarter, axes=(1, 2)) for quarter in range(4)])
    images = jnp.take_along_axis(turned, quarters[None, :, None, None, None], axis=0)[0]
    logits = model(images, keys=keys)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, quarters).mean()
    return loss, {'accuracy': (logits.argmax(axis=-1) == quarters).mean()}

  def head_size(self, classes, data):
    return 4

  def class_names(self, names):
    return ()


MODELS.register('swin', SwinConfig)
OBJECTIVES.register('rotation', RotationObjective)


def get_config() -> ConfigDict:
  """Three steps on digits."""
  return to_config_dict(
    Config(
      total='3 steps',
      batch_size=64,
      model=SwinConfig(),
      objective=RotationObjective(),
      data=DataConfig(source='digits', image_size=(8, 8), channels=1),
      evaluators={'probe': FewShotEvaluatorConfig(split='test', shots=(1,))},
    )
  )
