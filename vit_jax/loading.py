"""`vit_jax.load`: a model from any checkpoint, in one line."""

import contextlib
import dataclasses
import functools
import logging
import operator
import os
from collections.abc import Iterable
from typing import Any, Literal, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from PIL import Image

from vit_jax import options as options_lib
from vit_jax import pytrees
from vit_jax.data.preprocess import Preprocess
from vit_jax.errors import UserError
from vit_jax.models.base import DType, Model, ModelConfig, Pooling
from vit_jax.models.position_resize import PositionResize
from vit_jax.options import Amount, Count, ImageSize, Positive
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
    return _logits(self.module, self._checked(images))

  def __repr__(self) -> str:
    size = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(self.module, nnx.Param)))
    return f'<{self.config.describe()}; {size:,} parameters, {self.num_classes:,} classes>'

  def probabilities(self, logits: jax.Array) -> jax.Array:
    """(B, K) -> (B, K): of each class, one of which an image has (softmax) or each of which it may have (sigmoid)."""
    return jax.nn.sigmoid(logits) if self.link == 'sigmoid' else jax.nn.softmax(logits)

  def features(self, images: jax.typing.ArrayLike, layer: SupportsIndex | None = None) -> jax.Array:
    """(B, H, W, C) -> (B, N, D): tokens after block `layer` (from 0); None or -1: after the last norm.

    Raises:
      UserError: there is no such block.
    """
    return _features(self.module, self._checked(images), self._checked_layer(layer))

  def embeddings(self, images: jax.typing.ArrayLike) -> jax.Array:
    """(B, H, W, C) -> float32 (B, D): what the head reads, one vector an image."""
    return _embeddings(self.module, self._checked(images))

  def attention(self, images: jax.typing.ArrayLike) -> jax.Array | None:
    """float32 (L, B, H, N, N): how much each token (row) attends to each; None without attention."""
    return _attention(self.module, self._checked(images))

  def hidden_states(self, images: jax.typing.ArrayLike) -> jax.Array | None:
    """(L + 1, B, N, D): the tokens before the first block and after each; None: the model has no tokens."""
    return _hidden_states(self.module, self._checked(images))

  def pool(self, tokens: jax.typing.ArrayLike, how: Pooling | None = None) -> jax.Array:
    """(B, N, D) -> (B, D'): tokens of `features` pooled; see `Model.pool`.

    Raises:
      UserError: they are no such array, or the model cannot pool so.
    """
    array = _as_array(tokens)
    if array is None or array.ndim != 3:
      raise UserError(
        f'pool takes the tokens of features, (images, tokens, width), and this is {_shown(tokens)}; write '
        'model.pool(model.features(images)).'
      )
    try:
      return _pool(self.module, array, how)
    except ValueError as error:
      raise UserError(f'{error}.') from error

  def classify(self, images: Iterable[Image.Image | np.ndarray]) -> list[str]:
    """The most probable class of each of Pillow's images or uint8 arrays, by name (or number).

    Batches are filled up with zeros to the next power of two, so that few shapes are compiled.

    Raises:
      UserError: the model gives no logits of an image.
    """
    self.check_classifies()
    prepared = self.preprocess(images)
    batch = np.zeros((1 << (len(prepared) - 1).bit_length(), *prepared.shape[1:]), prepared.dtype)
    batch[: len(prepared)] = prepared
    best = np.asarray(self(batch).argmax(axis=-1))[: len(prepared)]
    return [self.class_names[number] if self.class_names else str(number) for number in best]

  def check_classifies(self, name: str = 'The model') -> None:
    """Raises UserError where an image has no vector of logits; the error calls the model by `name`."""
    if not self.num_classes:
      raise UserError(f'{name} has no head and cannot classify; fine-tune it first.')
    if not self.config.classifies_images:
      raise UserError(
        f"{name} gives logits of every token, not of the image; fine-tune it, or load an .npz with pool='gap' "
        '(vit_jax.load).'
      )

  def _checked(self, images: jax.typing.ArrayLike) -> jax.Array:
    """The images as an array, if they are what `preprocess` makes.

    Raises:
      UserError: they are not four-dimensional floats, have pixels of 0 to 255, no pixels, or other channels.
    """
    array = _as_array(images)
    remedy = 'write model(model.preprocess([image, …]))'
    if array is None or array.ndim != 4:
      raise UserError(
        'A model takes what its preprocess makes, float32 (images, height, width, channels), and this is '
        f'{_shown(images)}; {remedy}.'
      )
    kernel: Any = functools.reduce(getattr, self.config.first_kernel.split('/'), self.module)
    channels = kernel.shape[-2]
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

  def _checked_layer(self, layer: SupportsIndex | None) -> int | None:
    """The number of a block, from 0; None: all of them, and the last norm."""
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
    return None if number == -1 else number


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


@dataclasses.dataclass(frozen=True)
class _Arguments:
  """The arguments of `load` beside the checkpoint, by whose types they are checked."""

  image_size: ImageSize | None = None
  num_classes: Amount | None = None
  dtype: DType | None = None
  keep_pre_logits: bool = False
  position_resize: PositionResize | None = None
  gelu: Literal['tanh', 'erf'] | None = None
  norm_epsilon: Positive | None = None
  pool: Pooling | None = None
  heads: Count | None = None
  weights: Weights | None = None

  @classmethod
  def of(cls, **values: Any) -> '_Arguments':
    """The arguments, checked.

    Raises:
      UserError: one is not of its type, or none of its choices.
    """
    plain = {name: _without_numpy(value) for name, value in values.items()}
    dtype: Any = plain['dtype']
    if not isinstance(dtype, str | None):  # such as jnp.bfloat16
      with contextlib.suppress(TypeError):
        plain['dtype'] = np.dtype(dtype).name
    return options_lib.from_dict(cls, plain, 'load')


def _without_numpy(value: Any) -> Any:
  """NumPy's numbers as Python's, in a tuple or a list too."""
  if isinstance(value, tuple | list):
    return [_without_numpy(item) for item in value]
  return value.item() if isinstance(value, np.generic) else value


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
  asked = _Arguments.of(
    image_size=image_size,
    num_classes=num_classes,
    dtype=dtype,
    keep_pre_logits=keep_pre_logits,
    position_resize=position_resize,
    gelu=gelu,
    norm_epsilon=norm_epsilon,
    pool=pool,
    heads=heads,
    weights=weights,
  )
  told = {name: getattr(asked, name) for name in ('gelu', 'norm_epsilon', 'pool', 'heads')}
  return build(
    formats.read(
      source,
      image_size=asked.image_size,
      told={name: value for name, value in told.items() if value is not None},
      weights=asked.weights,
    ),
    image_size=asked.image_size,
    num_classes=asked.num_classes,
    dtype=asked.dtype,
    keep_pre_logits=asked.keep_pre_logits,
    position_resize=asked.position_resize,
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
  own.model.grid(size, 'image_size')  # refuses a size that the patches do not divide, by the argument's name
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
