"""Masked patch prediction: half of the patches are hidden, and their colours are to be guessed.

The paper's self-supervision (section 4.6 and appendix B.1.2), after BERT (arXiv 1810.04805). A fine-tuning
begins from its checkpoint (config.init).
"""

import jax
import jax.numpy as jnp

from vit_jax import config
from vit_jax.data.config import DataConfig
from vit_jax.errors import UserError
from vit_jax.models.vit import ViT
from vit_jax.objectives import losses

_LEVELS = config.COLOUR_LEVELS
# Of the corrupted patches: the mask takes the place of this share, another patch that of the next one; the
# rest is kept.
_MASKED, _EXCHANGED = 0.8, 0.1


def loss(
  model: ViT, batch: dict[str, jax.Array], data: DataConfig, loss: config.Loss
) -> tuple[jax.Array, jax.Array]:
  """Cross-entropy of the corrupted patches' mean colours.

  Args:
    model: with pool 'none' and a mask token.
    batch: 'image', float32 (B, H, W, C), and 'key' (B,).
    data: its value_range is what the images are in.
    loss: its label smoothing.

  Returns:
    float32 (B,): of each image, the mean over its corrupted patches; and the share of those whose colour
    was the most probable one.
  """
  images, keys = batch['image'], jax.vmap(jax.random.split)(batch['key'])
  patches, corrupted = corrupt(model.patches(images), model.mask_token[...], keys[:, 0])
  grid = model.grid_of(images.shape[1:3])
  tokens = model.encode(model.place(patches, images.shape[1:3]), keys[:, 1], grid=grid)
  logits = model.head(model.represent(tokens[:, -patches.shape[1] :]).astype(jnp.float32))
  labels = colours(images, grid, data.value_range)
  values = losses.softmax(loss, logits, jax.nn.one_hot(labels, logits.shape[-1]))
  mean = lambda values: (values * corrupted).sum(axis=1) / corrupted.sum(axis=1)
  return mean(values), mean(logits.argmax(axis=-1) == labels)


def corrupt(patches: jax.Array, mask_token: jax.Array, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Corrupts half of each image's patch embeddings (rounded up).

  Args:
    patches: (B, N, D), at least two patches.
    mask_token: (1, 1, D).
    keys: (B,) typed PRNG keys.

  Returns:
    (B, N, D), in which 80 % of the corrupted ones are the mask token, 10 % are another patch of the same
    image, and 10 % are kept; and bool (B, N): which are corrupted.
  """
  count = patches.shape[1]

  def draw(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    order, kind, other = jax.random.split(key, 3)
    corrupted = jax.random.permutation(order, count) < (count + 1) // 2
    shift = jax.random.randint(other, (count,), 1, count)
    return corrupted, jax.random.uniform(kind, (count,)), (jnp.arange(count) + shift) % count

  corrupted, kinds, others = jax.vmap(draw)(keys)
  masked = corrupted & (kinds < _MASKED)
  exchanged = corrupted & ~masked & (kinds < _MASKED + _EXCHANGED)
  exchange = jnp.take_along_axis(patches, others[..., None], axis=1)
  patches = jnp.where(exchanged[..., None], exchange, patches)
  return jnp.where(masked[..., None], mask_token.astype(patches.dtype), patches), corrupted


def colours(images: jax.Array, grid: tuple[int, int], value_range: tuple[float, float]) -> jax.Array:
  """The mean colour of each patch in three bits a channel.

  Args:
    images: float32 (B, H, W, C).
    grid: rows and columns of patches.
    value_range: the darkest value and the brightest.

  Returns:
    int32 (B, N), in 0 … 8^C - 1; red counts most.

  Raises:
    UserError: the grid does not divide the image into equal patches (that of a hybrid may not).
  """
  b, height, width, channels = images.shape
  (rows, columns), (low, high) = grid, value_range
  if height % rows or width % columns:
    raise UserError(
      f'config.data.image_size {(height, width)} does not divide into {rows} × {columns} patches of equal '
      f'size, whose colours are to be guessed; choose another size.'
    )
  cells = images.reshape(b, rows, height // rows, columns, width // columns, channels)
  means = cells.mean(axis=(2, 4)).reshape(b, -1, channels)
  levels = jnp.clip((means - low) / (high - low) * _LEVELS, 0, _LEVELS - 1).astype(jnp.int32)
  return (levels * _LEVELS ** jnp.arange(channels)[::-1]).sum(axis=-1)
