"""`vit_jax.load`: a model from any checkpoint, in one line."""

import dataclasses
import logging
import os

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import pytrees
from vit_jax.pretrained import formats
from vit_jax.pretrained.adapt import adapt
from vit_jax.pretrained.base import Portable
from vit_jax.pretrained.config import InitConfig

_log = logging.getLogger(__name__)


def load(
  source: str | os.PathLike,
  *,
  image_size: int | tuple[int, int] | None = None,
  num_classes: int | None = None,
  dtype: str | jnp.dtype | None = None,
  keep_representation: bool = False,
  position_resize: str | None = None,
  gelu: str | None = None,
  norm_epsilon: float | None = None,
  pool: str | None = None,
) -> nnx.Module:
  """The model of a checkpoint, its architecture read off the tensors.

  `model(images)` gives logits, `model.features(images, layer=None)` tokens, `model.preprocess(images)` the
  float32 (B, H, W, C) input of Pillow's images or uint8 arrays, prepared as for the checkpoint's training;
  `model.class_names` names the logits, where the checkpoint does (else None).

  Args:
    source: a released .npz, a training run's workdir or one of its checkpoints/<step>, or a Hugging Face
      folder; a path, an https:// or gs:// address of an .npz, or a short name such as
      'imagenet21k/ViT-B_16'.
    image_size: pixels, or height and width, to adapt the position embedding to. None: as trained.
    num_classes: a head of so many classes. Where the checkpoint has another number, it begins at zero and
      the representation layer goes with the old one.
    dtype: to compute in, 'float32' or 'bfloat16'; parameters stay float32. None: as the checkpoint says.
    keep_representation: keep the representation layer below a new head.
    position_resize: 'linear', 'bilinear', 'bicubic' or 'bicubic_antialias' (config.Init). None: as the
      checkpoint's own project does it.
    gelu: 'tanh' or 'erf', where the checkpoint cannot tell. None: as it says; of an .npz 'tanh', which all
      released ones have.
    norm_epsilon: likewise; of an .npz 1e-6.
    pool: of an .npz: 'token', 'gap', or 'none' for logits of every token. None: the class token if there is
      one, else 'gap'.

  Raises:
    UserError: there is no such checkpoint, it is damaged, or it does not fit what is asked for.
  """
  size = (image_size, image_size) if isinstance(image_size, int) else image_size
  return build(
    formats.read(source, image_size=size, gelu=gelu, norm_epsilon=norm_epsilon, pool=pool),
    image_size=size,
    num_classes=num_classes,
    dtype=dtype,
    keep_representation=keep_representation,
    position_resize=position_resize,
  )


def build(
  portable: Portable,
  *,
  image_size: tuple[int, int] | None = None,
  num_classes: int | None = None,
  dtype: str | jnp.dtype | None = None,
  keep_representation: bool = False,
  position_resize: str | None = None,
) -> nnx.Module:
  """The module of a checkpoint that has been read; the arguments are those of `load`."""
  for note in portable.notes:
    _log.warning(note)
  image_size = tuple(image_size or portable.image_size)
  new_head = num_classes is not None and num_classes != portable.num_classes
  num_classes = num_classes if new_head else portable.num_classes
  model = portable.model
  if dtype is not None:
    model = dataclasses.replace(model, dtype=jnp.dtype(dtype).name)
  if new_head and not keep_representation:
    model = dataclasses.replace(model, representation_size=None)
  init = InitConfig(
    position_resize=position_resize,
    reinitialise=('^head/',) if new_head else (),
    ignore=('^representation/',) if new_head else (),
  )
  graphdef, shapes = pytrees.shapes(model, image_size, portable.channels, num_classes)
  arrays, report = adapt(portable, shapes, image_size, init)
  if report.changes():
    _log.warning('%s', report)
  preprocess, class_names = portable.preprocess, None if new_head else portable.class_names
  del portable  # the caller keeps no reference either: each array goes when it is on the device
  leaves = {}
  for path, leaf in shapes.items():
    # What begins anew is the head, at zero. On a CPU device_put takes the memory over; jnp.asarray copies it.
    array = jax.device_put(arrays.pop(path)) if path in arrays else jnp.zeros(leaf.shape, leaf.dtype)
    leaves[path] = jax.block_until_ready(array)  # so that no more than one is there twice
  module = nnx.merge(graphdef, pytrees.unflatten(leaves))
  module.preprocess = preprocess.resized(image_size)
  module.class_names = class_names
  return jax.block_until_ready(module)
