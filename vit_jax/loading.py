"""`vit_jax.load`: a model from any checkpoint, in one line."""

import dataclasses
import functools
import logging
import os
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from PIL import Image

from vit_jax import pytrees
from vit_jax.data.preprocess import Preprocess
from vit_jax.errors import UserError
from vit_jax.models.base import DType, Model, ModelConfig, Pooling
from vit_jax.models.position_resize import PositionResize
from vit_jax.parallel import distributed
from vit_jax.pretrained import formats
from vit_jax.pretrained.adapt import adapt
from vit_jax.pretrained.base import Link, Pretrained
from vit_jax.pretrained.config import InitConfig, Weights

_log = logging.getLogger(__name__)


class LoadedModel:
  """A network with its parameters, ready to be called: what `vit_jax.load` gives.

  Its methods are compiled at their first call for a shape of images, and again for another shape. The module
  is an argument of the compiled programs, so that parameters or layers that are replaced in it are seen.

  Attributes:
    module: the NNX module, for those who transform or train it: `nnx.split(model.module)`.
    preprocess: makes the float32 (B, H, W, C) input of Pillow's images or uint8 arrays, prepared as for the
      checkpoint's training.
    class_names: of the logits; None: the checkpoint does not name them.
    link: 'softmax', or 'sigmoid' where an image may have several classes: what `probabilities` computes.
  """

  def __init__(
    self,
    module: Model,
    preprocess: Preprocess,
    class_names: tuple[str, ...] | None,
    link: Link = 'softmax',
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
    return self.module.head.kernel.shape[-1]

  def __call__(self, images: jax.typing.ArrayLike) -> jax.Array:
    """The logits, float32 (B, K), of images (B, H, W, C) of `preprocess`.

    Raises:
      UserError: the images are not such an array, as in all methods that take images.
    """
    return _logits(self.module, _checked(images))

  def __repr__(self) -> str:
    size = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(self.module, nnx.Param)))
    return f'<{self.config.describe()}; {size:,} parameters, {self.num_classes:,} classes>'

  def probabilities(self, logits: jax.Array) -> jax.Array:
    """(B, K) -> (B, K): of each class, one of which an image has (softmax) or each of which it may have (sigmoid)."""
    return jax.nn.sigmoid(logits) if self.link == 'sigmoid' else jax.nn.softmax(logits)

  def features(self, images: jax.typing.ArrayLike, layer: int | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): tokens after block `layer` (from 0); None or -1: after the last norm."""
    return _features(self.module, _checked(images), layer)

  def embeddings(self, images: jax.typing.ArrayLike) -> jax.Array:
    """(B, H, W, C) -> float32 (B, D): what the head reads, one vector an image."""
    return _embeddings(self.module, _checked(images))

  def attention(self, images: jax.typing.ArrayLike) -> jax.Array | None:
    """float32 (L, B, H, N, N): how much each token (row) attends to each; None without attention."""
    return _attention(self.module, _checked(images))

  def hidden_states(self, images: jax.typing.ArrayLike) -> jax.Array | None:
    """(L + 1, B, N, D): the tokens before the first block and after each; None: the model has no tokens."""
    return _hidden_states(self.module, _checked(images))

  def pool(self, tokens: jax.typing.ArrayLike, how: Pooling | None = None) -> jax.Array:
    """(B, N, D) -> (B, D'): tokens of `features` pooled; see `Model.pool`."""
    return _pool(self.module, jnp.asarray(tokens), how)

  def classify(self, images: Sequence[Image.Image | np.ndarray]) -> list[str]:
    """The most probable class of each of Pillow's images or uint8 arrays, by name (or number).

    Batches are filled up with zeros to the next power of two, so that few shapes are compiled.
    """
    prepared = self.preprocess(images)
    batch = np.zeros((1 << (len(prepared) - 1).bit_length(), *prepared.shape[1:]), prepared.dtype)
    batch[: len(prepared)] = prepared
    best = np.asarray(self(batch).argmax(axis=-1))[: len(prepared)]
    return [self.class_names[number] if self.class_names else str(number) for number in best]


# A module is a pytree: its parameters are arguments of the program, all else of it decides which program.


@jax.jit
def _logits(module: Model, images: jax.Array) -> jax.Array:
  return module(images)


@functools.partial(jax.jit, static_argnums=2)
def _features(module: Model, images: jax.Array, layer: int | None) -> jax.Array:
  return module.features(images, layer)


@jax.jit
def _embeddings(module: Model, images: jax.Array) -> jax.Array:
  return module.head_input(module.features(images)).astype(jnp.float32)


@jax.jit
def _attention(module: Model, images: jax.Array) -> jax.Array | None:
  return module.attention(images)


@jax.jit
def _hidden_states(module: Model, images: jax.Array) -> jax.Array | None:
  return module.hidden_states(images)


@functools.partial(jax.jit, static_argnums=2)
def _pool(module: Model, tokens: jax.Array, how: Pooling | None) -> jax.Array:
  return module.pool(tokens, how)


def _checked(images: jax.typing.ArrayLike) -> jax.Array:
  """The images as an array, if they are what `preprocess` makes.

  Raises:
    UserError: they are not four-dimensional numbers, or are pixels of 0 to 255.
  """
  kind = getattr(images, 'dtype', None)
  if np.ndim(images) == 4 and kind is not None and not np.issubdtype(kind, np.integer):
    return jnp.asarray(images)
  given = type(images).__name__ if kind is None else f'{kind} {np.shape(images)}'
  raise UserError(
    f'A model takes what its preprocess makes, float32 (images, height, width, channels), and this is {given}; '
    'write model(model.preprocess([image, …])).'
  )


def load(
  source: str | os.PathLike[str],
  *,
  image_size: int | tuple[int, int] | None = None,
  num_classes: int | None = None,
  dtype: DType | None = None,
  keep_pre_logits: bool = False,
  position_resize: PositionResize | None = None,
  gelu: Literal['tanh', 'erf'] | None = None,
  norm_epsilon: float | None = None,
  pool: Pooling | None = None,
  heads: int | None = None,
  weights: Weights | None = None,
) -> LoadedModel:
  """The model of a checkpoint, its architecture read off the tensors.

  Args:
    source: a released .npz, a training run's workdir or one of its checkpoints/<step>, or a Hugging Face
      folder; a path, an address in a bucket (gs://, s3://), an https:// address of a file, or a short
      name such as 'imagenet21k/ViT-B_16'.
    image_size: pixels, or height and width, to adapt the position embedding to. None: as trained.
    num_classes: a head of so many classes. Where the checkpoint has another number, the head begins at zero
      and the pre-logits layer goes with the old one.
    dtype: to compute in; parameters stay float32. None: as the checkpoint says.
    keep_pre_logits: keep the pre-logits layer below a new head.
    position_resize: how positions are resized to another image size (models/position_resize.py). None: as the
      checkpoint's own project does it.
    gelu, norm_epsilon, pool, heads: options of the model, where the checkpoint's files cannot tell; of an
      .npz gelu is 'tanh', norm_epsilon 1e-6 and pool the class token if there is one, else 'gap', unless said
      here.
    weights: of a training run: 'raw', or 'ema' for the moving average of its parameters. None: the latter where
      the run's checkpoint.best is a metric of it, else the former.

  Raises:
    UserError: there is no such checkpoint, it is damaged, or it does not fit what is asked for.
  """
  distributed.skip_absent_tpu()
  size = (image_size, image_size) if isinstance(image_size, int) else image_size
  options = {'gelu': gelu, 'norm_epsilon': norm_epsilon, 'pool': pool, 'heads': heads}
  told = {name: value for name, value in options.items() if value is not None}
  return build(
    formats.read(source, image_size=size, told=told, weights=weights),
    image_size=size,
    num_classes=num_classes,
    dtype=dtype,
    keep_pre_logits=keep_pre_logits,
    position_resize=position_resize,
  )


def build(
  pretrained: Pretrained,
  *,
  image_size: tuple[int, int] | None = None,
  num_classes: int | None = None,
  dtype: DType | None = None,
  keep_pre_logits: bool = False,
  position_resize: PositionResize | None = None,
) -> LoadedModel:
  """The model of a checkpoint that has been read; the arguments are those of `load`."""
  for note in pretrained.notes:
    _log.warning(note)
  if not pretrained.architecture.num_classes and not num_classes:
    _log.warning('The checkpoint has no head: it is for features, or for fine-tuning (num_classes=…).')
  own = pretrained.architecture
  size = own.image_size if image_size is None else image_size
  new_head = num_classes is not None and num_classes != own.num_classes
  model = own.model
  if dtype is not None:
    model = dataclasses.replace(model, dtype=dtype)
  if position_resize is not None:  # for images of other sizes too
    model = model.with_position_resize(position_resize)
  if new_head and not keep_pre_logits:
    model = model.without_pre_logits()
  classes = num_classes if new_head and num_classes is not None else own.num_classes
  architecture = dataclasses.replace(own, model=model, image_size=size, num_classes=classes)
  init = InitConfig(
    position_resize=position_resize,
    reinitialise=('^head/',) if new_head else (),
    ignore=('^pre_logits/',) if new_head else (),
  )
  arrays, report = adapt(pretrained, architecture, init)
  if report.changes():
    _log.warning('%s', report)
  preprocess, link = pretrained.preprocess.at(size), 'softmax' if new_head else pretrained.link
  class_names = None if new_head else pretrained.class_names
  del pretrained  # the caller keeps no reference either: each array goes when it is on the device
  graphdef, shapes = architecture.graph_and_shapes()
  module: Model = nnx.merge(graphdef, pytrees.unflatten(_on_device(arrays, shapes)))
  return LoadedModel(jax.block_until_ready(module), preprocess, class_names, link)


def _on_device(
  arrays: dict[str, np.ndarray], shapes: dict[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
  """The arrays (path -> array), which are given up one by one, and zeros for a new head."""
  leaves = {}
  for path, leaf in shapes.items():
    # On a CPU device_put takes the memory over; jnp.asarray copies it.
    array = jax.device_put(arrays.pop(path)) if path in arrays else jnp.zeros(leaf.shape, leaf.dtype)
    leaves[path] = jax.block_until_ready(array)  # so that no more than one is there twice
  return leaves
