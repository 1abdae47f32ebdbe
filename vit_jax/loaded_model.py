"""A loaded model: what `vit_jax.load` gives, compiled at its first call."""

import dataclasses
import functools
import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from PIL import Image

from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.naflex import Patches
from vit_jax.models import summary
from vit_jax.models.base import Architecture, Model, ModelConfig, Pooling
from vit_jax.models.capabilities import Attends, HasTokens, TextTowerOptions
from vit_jax.pretrained.base import Link

_log = logging.getLogger(__name__)


class LoadedModel:
  """A network with its parameters, ready to be called: what `vit_jax.load` gives.

  Its methods are compiled at their first call for a shape of images, and again for another shape. The module
  is an argument of the compiled programs, so that parameters or layers that are replaced in it are seen.

  Attributes:
    module: the NNX module, for those who transform or train it: `nnx.split(model.module)`.
    preprocess: makes the float32 (B, H, W, C) input of Pillow's images or uint8 arrays, prepared as for the
      checkpoint's training; of images that keep their shape (NaFlex) `Patches`, which all methods take.
    class_names: of the logits; None: the checkpoint does not name them.
    link: 'softmax', or 'sigmoid' where an image may have several classes: what `probabilities` computes.
  """

  def __init__(
    self, module: Model, preprocess: Preprocess, class_names: tuple[str, ...] | None, link: Link = 'softmax'
  ):
    self.module = module
    self.preprocess = preprocess
    self.class_names = class_names
    self.link: Link = link

  @property
  def config(self) -> ModelConfig:
    """The network's options."""
    return self.module.config

  @property
  def num_classes(self) -> int:
    """K; 0 where the checkpoint has no head."""
    head = getattr(self.module, 'head', None)
    return 0 if head is None else head.kernel.shape[-1]

  def __call__(self, images: jax.typing.ArrayLike, *, tta: bool = False) -> jax.Array:
    """The logits, float32 (B, K), of images (B, H, W, C) of `preprocess`.

    Args:
      images: of `preprocess`.
      tta: test-time augmentation: the mean of the logits of each image and of its mirror image (left to right).
        timm's training script averages logits too, AlexNet, VGG and fastai probabilities. The mean of logits is
        again what `probabilities` takes, by softmax and by sigmoid, and does not make a sure model unsure.

    Raises:
      UserError: the images are not such an array, as in all methods that take images.
    """
    if tta and isinstance(images, Patches):
      raise UserError('tta is for images of one size, and these have any shape (NaFlex); leave it out.')
    return _logits(self.module, self._checked(images), tta)

  def __repr__(self) -> str:
    size = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(self.module, nnx.Param)))
    return f'<{self.config.describe()}; {size:,} parameters, {self.num_classes:,} classes>'

  def summary(self) -> None:
    """Prints the layers: output shapes, parameters, FLOPs (models/summary.py)."""
    print(
      summary.table(
        Architecture(self.config, self.preprocess.size, self.preprocess.channels, self.num_classes)
      )
    )

  def probabilities(self, logits: jax.Array) -> jax.Array:
    """(B, K) -> (B, K): of each class, one of which an image has (softmax) or each of which it may have (sigmoid)."""
    return jax.nn.sigmoid(logits) if self.link == 'sigmoid' else jax.nn.softmax(logits)

  def features(self, images: jax.typing.ArrayLike, layer: SupportsIndex | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): tokens after block `layer` (from 0), padding's last; None or -1: after the last norm.

    Raises:
      UserError: there is no such block.
    """
    return features_of(self.module, self._checked(images), self._checked_layer(layer))

  def feature_maps(
    self,
    images: jax.typing.ArrayLike,
    layer: SupportsIndex | Sequence[SupportsIndex] | None = None,
    *,
    norm: bool = False,
  ) -> Any:
    """(B, H, W, C) -> (B, h, w, D): `features` of the patches in their places, without class token and registers.

    Args:
      images: of `preprocess`.
      layer: as of `features`; or several, whose maps are a list, and for which each block is computed once.
      norm: apply the last norm to the tokens of every block too, as DINOv2's own `get_intermediate_layers` does.

    Raises:
      UserError: there is no such block, or no norm for it.
    """
    layers = layer if isinstance(layer, Sequence) else [layer]
    numbers = tuple(self._checked_layer(number) for number in layers)
    maps = _able(_feature_maps, self.module, self._checked(images), numbers, norm)
    return maps if isinstance(layer, Sequence) else maps[0]

  def embeddings(
    self,
    images: jax.typing.ArrayLike,
    layer: SupportsIndex | None = None,
    how: Pooling | None = None,
  ) -> jax.Array:
    """(B, H, W, C) -> float32 (B, D): what the head reads, one vector an image.

    With `layer` or `how` these are `features` that are pooled. Padding of `Patches` is left out. UserError as of both.
    """
    return _able(embeddings_of, self.module, self._checked(images), self._checked_layer(layer), how)

  def attention(self, images: jax.typing.ArrayLike) -> jax.Array | None:
    """float32 (L, B, H, N, N): how much each token (row) attends to each; None without attention."""
    return attention_of(self.module, self._checked(images))

  def hidden_states(self, images: jax.typing.ArrayLike) -> jax.Array | None:
    """(L + 1, B, N, D): the tokens before the first block and after each; None: the model has no tokens."""
    return _hidden_states(self.module, self._checked(images))

  def pool(self, tokens: jax.typing.ArrayLike, how: Pooling | None = None) -> jax.Array:
    """(B, N, D) -> (B, D'): tokens of `features` pooled; see `Model.pool`.

    Raises:
      UserError: they are no such array, the model cannot pool so, or its images have padding.
    """
    if self.preprocess.max_patches is not None:
      raise UserError(
        'pool cannot tell padding from patches (NaFlex); write model.embeddings(images, layer, how).'
      )
    array = _as_array(tokens)
    if array is None or array.ndim != 3:
      raise UserError(
        f'pool takes the tokens of features, (images, tokens, width), and this is {_shown(tokens)}; write '
        'model.pool(model.features(images)).'
      )
    return _able(_pool, self.module, array, how)

  def classify(self, images: Iterable[Image.Image | np.ndarray]) -> list[str]:
    """The most probable class of each of Pillow's images or uint8 arrays, by name (or number).

    Batches are filled up with zeros to the next power of two, so that few shapes are compiled.

    Raises:
      UserError: the model gives no logits of an image.
    """
    self.check_classifies()
    prepared = self.preprocess(images)
    count = prepared.shape[0]
    missing = (1 << (count - 1).bit_length()) - count
    batch = jax.tree.map(lambda rows: np.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)]), prepared)
    best = np.asarray(self(batch).argmax(axis=-1))[:count]
    return [self.class_names[number] if self.class_names else str(number) for number in best]

  def check_classifies(self, name: str = 'The model') -> None:
    """Raises UserError where an image has no vector of logits; the error calls the model by `name`."""
    if not self.num_classes:
      texts = isinstance(self.config, TextTowerOptions)
      remedy = 'name its classes (--classes, load(classes=…))' if texts else 'fine-tune it first'
      raise UserError(f'{name} has no head and cannot classify; {remedy}.')
    if not self.config.classifies_images:
      raise UserError(
        f"{name} gives logits of every token, not of the image; fine-tune it, or load an .npz with pool='gap' "
        '(vit_jax.load).'
      )

  def squash(self, what: str) -> None:
    """Has images of any shape squashed to squares, since `what` is for images of one size; a warning says so."""
    if self.preprocess.max_patches is not None:
      self.preprocess = dataclasses.replace(self.preprocess, max_patches=None)
      _log.warning(
        '%s is for images of one size: they are squashed to %d x %d pixels, although the checkpoint takes them in any '
        'shape.',
        what,
        *self.preprocess.size,
      )

  def _checked(self, images: Any) -> Any:
    """The images as an array.

    UserError where they are not what `preprocess` makes: floats (B, H, W, C), with the model's channels, or `Patches`.
    """
    if isinstance(images, Patches):
      self.config.check_any_shape('A batch of patches')
      return Patches(self._checked(images.pixels), jnp.asarray(images.grids))
    array = _as_array(images)
    remedy = 'write model(model.preprocess([image, …]))'
    if array is None or array.ndim != 4:
      raise UserError(
        'A model takes what its preprocess makes, float32 (images, height, width, channels), and this is '
        f'{_shown(images)}; {remedy}.'
      )
    channels = self.first_kernel.shape[-2]
    if array.shape[3] != channels:
      if array.shape[1] == channels:
        remedy = 'its channels come first: give images.transpose(0, 2, 3, 1)'
      raise UserError(
        f'The model takes images of {channels} channel{"s"[: channels > 1]}, (images, height, width, channels), and '
        f'these are {array.shape}; {remedy}.'
      )
    if not array.size:
      raise UserError(f'There are no pixels in images of the shape {array.shape}; give at least one image.')
    return array

  @property
  def first_kernel(self) -> jax.Array:
    """The kernel that meets the image's pixels, (height, width, channels, outputs)."""
    kernel: Any = functools.reduce(getattr, self.config.first_layer.kernel.split('/'), self.module)
    return kernel[...]

  def _checked_layer(self, layer: SupportsIndex | None) -> int | None:
    """The number of a block, from 0; None or -1: all of them, and the last norm."""
    if layer is None:
      return None
    depth = self.config.num_layers
    try:
      number = operator.index(layer)
    except TypeError:
      number = depth
    if not -1 <= number < depth:
      raise UserError(
        f'layer is {layer!r}; choose a block from 0 to {depth - 1}, or None for the final tokens.'
      )
    return number


# A module is a pytree: its parameters are arguments of the program, all else of it decides which program.


@functools.partial(jax.jit, static_argnums=2)
def _logits(module: Model, images: jax.Array, tta: bool) -> jax.Array:
  if not tta:
    return module(images)
  both = module(jnp.concatenate([images, images[:, :, ::-1]]))
  return both.reshape(2, len(images), *both.shape[1:]).mean(axis=0)


@functools.partial(jax.jit, static_argnums=2)
def features_of(module: Model, images: jax.Array, layer: int | None = None) -> jax.Array:
  """(B, N, D): as `LoadedModel.features` of a network and a batch."""
  return module.features(images, layer)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _feature_maps(
  module: Model, images: jax.Array, layers: tuple[int | None, ...], norm: bool
) -> list[jax.Array]:
  return module.feature_maps(images, layers, norm=norm)


@functools.partial(jax.jit, static_argnums=(2, 3))
def embeddings_of(
  module: Model, images: jax.Array, layer: int | None = None, how: Pooling | None = None
) -> jax.Array:
  """float32 (B, D): as `LoadedModel.embeddings`."""
  return module.embeddings(images, layer, how).astype(jnp.float32)


@jax.jit
def attention_of(module: Model, images: jax.Array) -> jax.Array | None:
  """(L, B, H, N, N): as `LoadedModel.attention`; None where the network has none."""
  return module.attention(images) if isinstance(module, Attends) else None


@jax.jit
def _hidden_states(module: Model, images: jax.Array) -> jax.Array | None:
  return module.hidden_states(images) if isinstance(module, HasTokens) else None


@functools.partial(jax.jit, static_argnums=2)
def _pool(module: Model, tokens: jax.Array, how: Pooling | None) -> jax.Array:
  return module.pool(tokens, how)


def _able(function: Callable[..., Any], *arguments: Any) -> Any:
  """What a function gives; UserError where a model, by its ValueError, cannot do so."""
  try:
    return function(*arguments)
  except ValueError as error:
    raise UserError(f'{error}.') from error


def _as_array(values: Any) -> jax.Array | None:
  """Floats as an array of JAX's, those of another library, such as PyTorch, too; None: they are something else."""
  kind = getattr(values, 'dtype', None)
  if kind is None:
    return None
  try:
    array = values if isinstance(kind, np.dtype) else np.asarray(values)
    return jnp.asarray(array) if jnp.issubdtype(array.dtype, jnp.floating) else None
  except (TypeError, ValueError, RuntimeError):
    return None  # a tensor with a gradient, say, or one that is not in the host's memory


def _shown(values: Any) -> str:
  """An argument as errors name it: 'uint8 (1, 32, 32, 3)', 'list'."""
  kind = getattr(values, 'dtype', None)
  return type(values).__name__ if kind is None else f'{kind} {tuple(values.shape)}'
