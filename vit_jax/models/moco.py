"""A Vision Transformer with the heads of contrastive learning (MoCo v3, arXiv 2104.02057; SimCLR, arXiv 2002.05709).

A projection, three dense layers with batch norm, makes of an image the vector that is compared with those of other
images; a predictor of two more layers stands behind it in MoCo v3 (section 3 there). Both are of use in pre-training
alone: fine-tuning and features are the transformer's.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.models import flops, vit_flops
from vit_jax.models.base import Architecture, Model, Sharding, ShardingRules
from vit_jax.models.batch_norm import BatchNorm
from vit_jax.models.flops import Layer
from vit_jax.models.layers import unit
from vit_jax.models.parts.pools import POOLS
from vit_jax.models.vit import ViT
from vit_jax.models.vit_config import ViTConfig
from vit_jax.options import Size

_MOMENTUM, _EPSILON = 0.9, 1e-5  # of batch norm, as PyTorch's


@dataclasses.dataclass(frozen=True)
class MocoConfig(ViTConfig):
  """A Vision Transformer and the sizes of its projection and its predictor."""

  # Hidden units of each hidden layer of the projection and of the predictor.
  projection_hidden: Size = 4096
  # Length of the vectors that are compared.
  projection_width: Size = 256
  # Predictor behind the projection, as in MoCo v3; SimCLR has none.
  predictor: bool = True

  title: ClassVar[str] = 'a Vision Transformer for contrastive learning'

  @property
  def sharding_rules(self) -> ShardingRules:  # pyright: ignore[reportIncompatibleVariableOverride] (by the parts)
    return (
      *super().sharding_rules,
      (r'(projection|predictor)/dense_0/kernel', ('fsdp', 'tensor')),  # (D or P, H)
      (r'(projection|predictor)/dense_1/kernel', ('tensor', 'fsdp')),  # (H, H or P)
      (r'projection/dense_2/kernel', ('fsdp', None)),  # (H, P)
      (r'(projection|predictor)/norm_\d/\w+', ()),
    )

  @property
  def head_sizes(self) -> dict[str, tuple[int, ...]]:
    """{'projection': its inputs, hidden units and outputs, 'predictor': the same}; the predictor where there is one."""
    inputs = self.pre_logits_size or POOLS[self.pool].widths * self.sizes.width
    hidden, width = self.projection_hidden, self.projection_width
    sizes = {'projection': (inputs, hidden, hidden, width)}
    return sizes | ({'predictor': (width, hidden, width)} if self.predictor else {})

  def build(self, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None) -> Model:
    return MocoTransformer(self, architecture, rngs, sharding)

  def for_classification(self) -> ViTConfig:
    """The transformer by itself."""
    return self.part_of(ViTConfig).for_classification()

  def _layers(self, architecture: Architecture, dropped: float) -> list[Layer]:
    """Those of the transformer, of the projection and of the predictor."""
    heads = [Layer(name, sizes[-1:], flops.dense(sizes)) for name, sizes in self.head_sizes.items()]
    return [*vit_flops.without_head(self, architecture, dropped), *heads]

  def describe(self) -> str:
    return f'{super().describe()}, projected to {self.projection_width}'

  def check(self, path: str) -> None:
    super().check(path)
    if self.pool == 'none':
      raise UserError(f'{path}.pool is none, which leaves nothing to project; choose token, gap or map.')
    what = 'which contrastive learning has no use for'
    self.check_only(path, what, mask_token=False, distillation_token=False)


class NormedLayers(nnx.Module):
  """Dense layers without biases, a batch norm behind each, and ReLU between them; the last norm learns nothing."""

  def __init__(self, sizes: Sequence[int], dtype: jnp.dtype, rngs: nnx.Rngs):
    """`sizes`: inputs, hidden units and outputs."""
    self.number = len(sizes) - 1
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
      learns = layer < self.number - 1
      norm = BatchNorm(outputs, momentum=_MOMENTUM, epsilon=_EPSILON, learns=learns)
      setattr(self, f'dense_{layer}', nnx.Linear(inputs, outputs, use_bias=False, dtype=dtype, rngs=rngs))
      setattr(self, f'norm_{layer}', norm)

  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    """(B, V, D) -> (B, V, P). With `train`, statistics are those of all B V vectors."""
    x = x[:, :, None]
    for layer in range(self.number):
      x = getattr(self, f'norm_{layer}')(getattr(self, f'dense_{layer}')(x), train=train)
      x = jax.nn.relu(x) if layer < self.number - 1 else x
    return x[:, :, 0]


class MocoTransformer(ViT):
  """Images to what is compared of them, float32 (B, P), each of length 1, behind the predictor where there is one."""

  def __init__(
    self, config: MocoConfig, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None
  ):
    super().__init__(config, dataclasses.replace(architecture, num_classes=1), rngs, sharding)
    del self.head
    make = functools.partial(NormedLayers, dtype=jnp.dtype(config.dtype), rngs=rngs)
    sizes = config.head_sizes
    self.projection = make(sizes['projection'])
    self.predictor: Any = make(sizes['predictor']) if config.predictor else None

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    features = self.view_features(images, keys=keys)[:, None]
    return self.projections(features, predict=True, train=keys is not None)[:, 0]

  def view_features(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    return self.head_input(*self.encode_images(images, keys))

  def projections(self, features: jax.Array, *, predict: bool, train: bool = True) -> jax.Array:
    with jax.named_scope('projection'):
      x = self.projection(features, train=train)
    if predict and self.predictor is not None:
      with jax.named_scope('predictor'):
        x = self.predictor(x, train=train)
    return unit(x)
