"""Images and texts that belong together get features of a large cosine: SigLIP's loss (arXiv 2303.15343), and CLIP's.

The sigmoid asks of each pair of an image and a text of the batch by itself whether they belong together (section 3.2).
So no device needs more than its own images and the texts of one device at a time, which go around in a ring (section
3.3): its memory grows by its own part of the batch, whatever the number of devices. CLIP's softmax (arXiv 2103.00020,
figure 3) asks which text of all is an image's, and which image a text's; each device compares its images with all
texts at once.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Literal

import chex
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.data.config import DataConfig
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Model, ModelConfig
from vit_jax.models.capabilities import ComparesTexts, TextTowerOptions
from vit_jax.objectives.base import Batch, Headless, Metrics, Texts

# A few products of thin matrices, whose errors the scale multiplies.
_dot = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


@dataclasses.dataclass(frozen=True)
class ContrastiveObjective(Headless):
  """The loss of all pairs of an image and a text of the batch."""

  # Loss of the pairs: 'sigmoid', SigLIP's, or 'softmax', CLIP's. Parts of config.accumulation are batches of their own.
  loss: Literal['sigmoid', 'softmax'] = 'sigmoid'
  # Texts of images, such as ('a photo of a {}.', 'a picture of a {}'), of which each example draws one. In it, {}
  # stands for the name of the example's class, and {text} for its caption, or one of several, drawn likewise. Prepared
  # data may have captions, and so may a folder, in NAME.txt beside NAME.jpg.
  prompts: tuple[str, ...] = ('a photo of a {}.',)
  # Tokenizer of the texts: 'bytes', a token for each byte, numbered as ByT5's; or a folder that has a tokenizer.json,
  # such as that of a CLIP or a SigLIP (also hf:org/name).
  tokenizer: str = 'bytes'

  title: ClassVar[str] = 'contrastive learning of images and texts'
  evaluators: ClassVar[tuple[str, ...]] = ('zero_shot', 'retrieval', 'fewshot')
  compares_examples: ClassVar[bool] = True

  def loss_and_metrics(
    self, model: Model, batch: Batch, keys: jax.Array, data: DataConfig
  ) -> tuple[jax.Array, Metrics]:
    """The mean over images of the loss of their pairs with all texts (sigmoid), or of both directions (softmax)."""
    assert isinstance(model, ComparesTexts)  # by `check_run`
    images, texts = model(batch['image'], keys=keys), model.text_features(batch['text'])
    scale, bias = model.scale_and_bias()
    chex.assert_equal_shape([images, texts])
    chex.assert_type([images, texts], jnp.float32)
    loss: jax.Array
    if self.loss == 'sigmoid':
      loss = sigmoid_loss(images, texts, scale, bias, model.sharding)
    else:
      loss = softmax_loss(images, texts, scale)
    return loss, {'logit_scale': scale, 'logit_bias': bias}

  @property
  def texts(self) -> Texts:
    return Texts(self.prompts, self.tokenizer)

  @property
  def link(self) -> Literal['softmax', 'sigmoid']:
    return self.loss

  def check(self, path: str) -> None:
    """Raises UserError where there is no text."""
    if not self.prompts:
      raise UserError(f"{path}.prompts is (); name a text, such as 'a photo of a {{}}.'.")

  def check_run(self, model: ModelConfig, data: DataConfig) -> None:
    name = "config.objective.name is 'contrastive'"
    if not isinstance(model, TextTowerOptions):
      raise UserError(f'{name}; it needs a text tower, --config.model.name=two_towers.')
    if data.mixup_alpha or data.cutmix:
      raise UserError(
        f'{name}, and texts cannot be mixed; set config.data.mixup and config.data.cutmix to 0.'
      )
    if data.max_labels is not None or data.num_classes is not None:
      wrong = 'max_labels' if data.num_classes is None else 'num_classes'
      raise UserError(f'{name}, whose texts are of one class each; leave config.data.{wrong} out.')


def softmax_loss(images: jax.Array, texts: jax.Array, scale: jax.Array) -> jax.Array:
  """CLIP's loss of features (B, P) of length 1: the mean of the cross-entropies of images and of texts.

  The scale counts as 100 where it is more (section 2.5).
  """
  logits, right = _capped(scale) * _dot(images, texts.T), jnp.arange(len(images))
  of_images, of_texts = (
    optax.softmax_cross_entropy_with_integer_labels(each, right).mean() for each in (logits, logits.T)
  )
  return (of_images + of_texts) / 2


@jax.custom_vjp
def _capped(scale: jax.Array) -> jax.Array:
  """The smaller of the scale and 100, whose gradient still brings it down where it is there, or above by a rounding.

  CLIP's code clips the parameter behind each step instead, which can go down again too.
  """
  return jnp.minimum(scale, 100.0)


_capped.defvjp(
  lambda scale: (_capped(scale), scale),
  lambda scale, gradient: (jnp.where(scale < 100, gradient, jnp.maximum(gradient, 0)),),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def sigmoid_loss(
  images: jax.Array, texts: jax.Array, scale: jax.Array, bias: jax.Array, sharding: NamedSharding | None
) -> jax.Array:
  """SigLIP's loss, - 1 / B sum_ij log sigmoid(z_ij (scale cos_ij + bias)), z_ii being 1 and all others -1.

  Gradients are computed with the loss: those of the texts go around with them. So nothing of a turn is kept for the
  backward pass, and a device holds the pairs of its images and the texts of one device.

  Args:
    images, texts: features, float32 (B, P), each of length 1.
    scale, bias: scalars.
    sharding: of the examples; None: all are on one device.
  """
  return _loss_and_gradients(images, texts, scale, bias, sharding)[0]


def _forward(*args: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  return _loss_and_gradients(*args)


def _backward(sharding: NamedSharding | None, gradients: Any, of_loss: jax.Array) -> Any:
  return jax.tree.map(lambda gradient: of_loss * gradient, gradients)


sigmoid_loss.defvjp(_forward, _backward)


def _loss_and_gradients(
  images: jax.Array, texts: jax.Array, scale: jax.Array, bias: jax.Array, sharding: NamedSharding | None
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """The loss, and its gradients by images, texts, scale and bias."""
  if sharding is None:
    return _ring(images, texts, scale, bias, 1, None)
  mesh, axes = sharding.mesh, sharding.spec[0]
  devices = len(images) // sharding.shard_shape(images.shape)[0]
  split, whole = P(axes), P()
  ring = functools.partial(_ring, devices=devices, axes=axes)
  return jax.shard_map(
    ring,
    mesh=mesh,
    in_specs=(split, split, whole, whole),
    out_specs=(whole, (split, split, whole, whole)),
    check_vma=False,
  )(images, texts, scale, bias)


def _ring(
  images: jax.Array, texts: jax.Array, scale: jax.Array, bias: jax.Array, devices: int, axes: Any
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """As `_loss_and_gradients`, on one of so many devices along mesh axes, with its part of images and texts."""
  own = 2 * jnp.eye(len(images), dtype=jnp.float32) - 1
  neighbours = [(device, (device + 1) % devices) for device in range(devices)]

  def turn(carry: Any, number: jax.Array) -> tuple[Any, None]:
    texts, by_texts, by_images, sums = carry
    cosines = _dot(images, texts.T)
    signs = jnp.where(number == 0, own, -1.0)
    agreement = signs * (scale * cosines + bias)
    by_logits = -signs * jax.nn.sigmoid(-agreement)
    by_images += scale * _dot(by_logits, texts)
    by_texts += scale * _dot(by_logits.T, images)
    sums += jnp.stack([-jax.nn.log_sigmoid(agreement).sum(), (by_logits * cosines).sum(), by_logits.sum()])
    if axes is not None:
      texts, by_texts = jax.lax.ppermute((texts, by_texts), axes, neighbours)
    return (texts, by_texts, by_images, sums), None

  first = (texts, jnp.zeros_like(texts), jnp.zeros_like(images), jnp.zeros(3))
  (_, by_texts, by_images, sums), _ = jax.lax.scan(turn, first, jnp.arange(devices))
  pairs = len(images) * devices
  sums = (sums if axes is None else jax.lax.psum(sums, axes)) / pairs
  return sums[0], (by_images / pairs, by_texts / pairs, sums[1], sums[2])
