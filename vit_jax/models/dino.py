"""A Vision Transformer with prototypes, for self-distillation (DINO, arXiv 2104.14294; DINOv2, arXiv 2304.07193).

A projection makes of a token the cosines with many learned prototypes (DINO, section 3.1 and appendix C), which are of
use in pre-training alone. Fine-tuning and features are the transformer's.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models import flops, vit_flops
from vit_jax.models.base import Architecture, Model, Sharding, ShardingRules
from vit_jax.models.flops import Layer
from vit_jax.models.layers import unit
from vit_jax.models.vit import ViT
from vit_jax.models.vit_config import ViTConfig
from vit_jax.options import Size


@dataclasses.dataclass(frozen=True)
class DinoConfig(ViTConfig):
  """A Vision Transformer and the sizes of its projection to prototypes."""

  # Mask token: the learned embedding of the patches that the student does not see.
  mask_token: bool = True
  # Number of prototypes, K.
  prototypes: Size = 65_536
  # Hidden units of both hidden layers of the projection.
  projection_hidden: Size = 2048
  # Length of the vectors that are compared with prototypes.
  projection_width: Size = 256
  # Second projection, with prototypes of its own, for patches; otherwise both are of one.
  patch_projection: bool = False

  title: ClassVar[str] = 'a Vision Transformer with prototypes'

  @property
  def sharding_rules(self) -> ShardingRules:  # pyright: ignore[reportIncompatibleVariableOverride] (by the parts)
    projection = r'(patch_)?projection'
    return (
      *super().sharding_rules,
      (rf'{projection}/first/kernel', ('fsdp', 'tensor')),  # (D, H)
      (rf'{projection}/first/bias', ('tensor',)),  # (H,)
      (rf'{projection}/second/kernel', ('tensor', 'fsdp')),  # (H, H)
      (rf'{projection}/third/kernel', ('fsdp', None)),  # (H, P)
      (rf'{projection}/(second|third)/bias', ()),
      (rf'{projection}/prototypes/kernel', ('fsdp', 'tensor')),  # (P, K)
      (r'centre/(images|patches)', ('tensor',)),  # (K,)
    )

  def build(self, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None) -> Model:
    return DinoTransformer(self, architecture, rngs, sharding)

  def for_classification(self) -> ViTConfig:
    """The transformer by itself."""
    return self.part_of(ViTConfig, mask_token=False)

  def _layers(self, architecture: Architecture, dropped: float) -> list[Layer]:
    """Those of the transformer and of the projection of its class token."""
    transformer = vit_flops.without_head(self, architecture, dropped)
    hidden = self.projection_hidden
    sizes = (self.sizes.width, hidden, hidden, self.projection_width, self.prototypes)
    return [*transformer, Layer('projection', (self.prototypes,), flops.dense(sizes))]

  def describe(self) -> str:
    return f'{super().describe()}, {self.prototypes:,} prototypes'

  def check(self, path: str) -> None:
    super().check(path)
    needed = {'pool': 'token', 'final_norm': 'tokens', 'mask_token': True, 'pre_logits_size': None}
    needed |= {'distillation_token': False, 'cosine_head': False, 'axial': False, 'patch_dropout': 0.0}
    self.check_only(path, 'and the student of a self-distillation needs {!r}', **needed)


class Projection(nnx.Module):
  """Tokens to cosines with prototypes: three layers, then a length of 1, on both sides (`norm_last_layer`).

  Kernels begin with a deviation of 1 / sqrt(inputs), which for the 2,048 hidden units of the authors is their 0.02, and
  in small models keeps what is scaled to 1 from being next to nothing.
  """

  def __init__(self, config: DinoConfig, rngs: nnx.Rngs):
    dtype, hidden, width = jnp.dtype(config.dtype), config.projection_hidden, config.projection_width
    make = functools.partial(nnx.Linear, dtype=dtype, rngs=rngs)
    self.first = make(config.sizes.width, hidden)
    self.second = make(hidden, hidden)
    self.third = make(hidden, width)
    self.prototypes = make(width, config.prototypes, use_bias=False)
    self.dtype = dtype

  def __call__(self, tokens: jax.Array, *, held: jax.typing.ArrayLike = False) -> jax.Array:
    """(…, D) -> float32 (…, K). Where `held`, a bool scalar, is True, prototypes get no gradient."""
    x = jax.nn.gelu(self.first(tokens), approximate=False)
    x = jax.nn.gelu(self.second(x), approximate=False)
    kernel = self.prototypes.kernel[...]
    kernel = unit(jnp.where(held, jax.lax.stop_gradient(kernel), kernel), axis=0)
    x = unit(self.third(x))
    return jnp.matmul(x.astype(self.dtype), kernel.astype(self.dtype), preferred_element_type=jnp.float32)


class Centre(nnx.Module):
  """The running means of the teacher's scores, of images and of patches, which are no parameters; zero at first."""

  def __init__(self, prototypes: int):
    self.images = nnx.BatchStat(jnp.zeros(prototypes))
    self.patches = nnx.BatchStat(jnp.zeros(prototypes))


class DinoTransformer(ViT):
  """Images to scores of prototypes, float32 (B, K)."""

  def __init__(
    self, config: DinoConfig, architecture: Architecture, rngs: nnx.Rngs, sharding: Sharding | None = None
  ):
    super().__init__(config, dataclasses.replace(architecture, num_classes=1), rngs, sharding)
    del self.head
    self.projection = Projection(config, rngs)
    self.patch_projection: Any = Projection(config, rngs) if config.patch_projection else None
    self.centre = Centre(config.prototypes)

  def __call__(self, images: jax.Array, *, keys: jax.Array | None = None) -> jax.Array:
    return self.prototype_scores(self.tokens(images, keys=keys)[:, 0])

  def tokens(
    self, images: jax.Array, masked: jax.Array | None = None, *, keys: jax.Array | None = None
  ) -> jax.Array:
    patches = self.patches(images)
    if masked is not None:
      assert self.mask_token is not None, 'config.mask_token is checked'
      patches = jnp.where(masked[..., None], self.mask_token[...].astype(patches.dtype), patches)
    return self.encode(self.add_positions(patches, images), keys, grid=self.grid_of(images))

  def prototype_scores(
    self, tokens: jax.Array, *, of_patches: bool = False, held: jax.typing.ArrayLike = False
  ) -> jax.Array:
    projection = self.projection if self.patch_projection is None or not of_patches else self.patch_projection
    with jax.named_scope('projection'):
      return projection(tokens, held=held)
