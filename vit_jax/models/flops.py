"""How many floating point operations a Vision Transformer takes, counted from its sizes.

Matrix products only, one multiplication with its addition being 2 FLOPs, as the paper's exaFLOPs
(table 6) are counted; the compiler's own count sees the body of a scan once.
"""

from vit_jax.models.variants import Sizes


def forward_flops(
  sizes: Sizes,
  *,
  image_size: tuple[int, int],
  channels: int,
  num_classes: int,
  pool: str = 'token',
  class_token: bool | None = None,
  representation_size: int | None = None,
) -> int:
  """FLOPs of the logits of one image; the options are those of `config.Model`."""
  d = sizes.width
  patches = (image_size[0] // sizes.patch) * (image_size[1] // sizes.patch)
  tokens = patches + (pool == 'token' if class_token is None else class_token)
  macs = patches * sizes.patch**2 * channels * d
  macs += sizes.depth * (_attention(tokens, tokens, d) + _mlp(tokens, sizes))
  if pool == 'map':
    macs += _attention(1, tokens, d) + _mlp(1, sizes)
  outputs = tokens if pool == 'none' else 1
  features = representation_size or d
  macs += outputs * ((d * features if representation_size else 0) + features * num_classes)
  return 2 * macs


def train_flops(forward: int) -> int:
  """FLOPs of a training step, per image: the backward pass takes two forward passes."""
  return 3 * forward


def _attention(queries: int, tokens: int, width: int) -> int:
  """Multiplications of q and out, k and v, and both products of attention."""
  return 2 * queries * width**2 + 2 * tokens * width**2 + 2 * queries * tokens * width


def _mlp(tokens: int, sizes: Sizes) -> int:
  return 2 * tokens * sizes.width * sizes.mlp_dim
