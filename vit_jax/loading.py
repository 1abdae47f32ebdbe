"""`vit_jax.load`: a model from any checkpoint, in one line."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax import options as options_lib
from vit_jax.foundation import pytrees
from vit_jax.loaded_model import LoadedModel
from vit_jax.models.base import DType, Model, Pooling
from vit_jax.models.capabilities import PretrainingOptions
from vit_jax.models.parts import OneOf
from vit_jax.models.parts.activations import Activation
from vit_jax.models.parts.pools import POOLS
from vit_jax.models.position_resize import PositionResize
from vit_jax.options import Amount, Count, ImageSize, Positive
from vit_jax.parallel import distributed
from vit_jax.pretrained import formats, peft
from vit_jax.pretrained.adapt import adapt
from vit_jax.pretrained.base import Pretrained, with_told
from vit_jax.pretrained.config import InitConfig, Weights

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Arguments:
  """The arguments of `load` beside the checkpoint, by whose types they are checked."""

  image_size: ImageSize | None = None
  num_classes: Amount | None = None
  dtype: DType | None = None
  keep_pre_logits: bool = False
  position_resize: PositionResize | None = None
  activation: Activation | None = None
  norm_epsilon: Positive | None = None
  pool: Annotated[Pooling, OneOf(POOLS)] | None = None
  heads: Count | None = None
  weights: Weights | None = None
  adapter: str | None = None
  patch: Count | None = None
  classes: tuple[str, ...] | None = None
  max_patches: Count | None = None
  token_merging: Amount = 0

  @classmethod
  def of(cls, **values: Any) -> '_Arguments':
    """The arguments, checked; UserError where one is not of its type, or none of its choices."""
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


# Sixteen parameters: people type them in notebooks, where an editor completes and explains them.
def load(
  source: str | os.PathLike[str],
  *,
  image_size: int | tuple[int, int] | None = None,
  num_classes: int | None = None,
  dtype: DType | None = None,
  keep_pre_logits: bool = False,
  position_resize: PositionResize | None = None,
  activation: Activation | None = None,
  norm_epsilon: float | None = None,
  pool: Pooling | None = None,
  heads: int | None = None,
  weights: Weights | None = None,
  adapter: str | os.PathLike[str] | None = None,
  patch: int | None = None,
  classes: Sequence[str] | None = None,
  max_patches: int | None = None,
  token_merging: int = 0,
) -> LoadedModel:
  """The model of a checkpoint, its architecture read off the tensors.

  Args:
    source: a released .npz, a training run's workdir or one of its checkpoints/<step>, or a Hugging Face
      folder; a path, an address in a bucket (gs://, s3://), an https:// address of a file, a repository of the Hub
      ('hf:org/name@revision:file'), or a short name such as 'imagenet21k/ViT-B_16'.
    image_size: pixels, or height and width, to adapt the position embedding to. None: as trained.
    num_classes: a head of so many classes. Where the checkpoint has another number, the head begins at zero
      and the pre-logits layer goes with the old one.
    dtype: to compute in; parameters stay float32. None: as the checkpoint says.
    keep_pre_logits: keep the pre-logits layer below a new head.
    position_resize: how positions are resized to another image size (models/position_resize.py). None: as the
      checkpoint's own project does it.
    activation, norm_epsilon, pool, heads: options of the model, where the checkpoint's files cannot tell; of an
      .npz activation is 'gelu_tanh', norm_epsilon 1e-6 and pool the class token if there is one, else 'gap', unless
      said here.
    weights: of a training run: 'raw', or 'ema' for the moving average of its parameters. None: the latter where
      the run's checkpoint.best is a metric of it, else the former.
    adapter: a folder of PEFT, whose LoRA or DoRA adapters of this model are merged into it.
    patch: pixels along a side of a patch, to which the patch embedding is resized (FlexiViT, arXiv 2212.08013); the
      grid of positions follows. None: as trained.
    classes: of CLIP or SigLIP: texts such as 'a photo of a dog', of which its text tower makes the head.
    max_patches: NaFlex: images keep their aspect ratio and are cut into at most so many patches, for which the
      positions are resized. None: as the checkpoint takes its images; with image_size all of that size.
    token_merging: patches that each block merges into others for logits (ToMe, models/token_merging.py).

  Raises:
    UserError: there is no such checkpoint, it is damaged, or it does not fit what is asked for.
  """
  adapter = None if adapter is None else os.fspath(adapter)
  asked = _Arguments.of(**{name: value for name, value in locals().items() if name != 'source'})
  distributed.skip_absent_tpu()
  told = {name: getattr(asked, name) for name in ('activation', 'norm_epsilon', 'pool', 'heads')}
  told = {name: value for name, value in told.items() if value is not None}
  pretrained = formats.read(source, image_size=asked.image_size, told=told, weights=asked.weights)
  if adapter:
    pretrained = peft.applied(pretrained, adapter)
  if asked.classes is not None:
    pretrained = formats.with_texts(source, pretrained, asked.classes)
  return _built(pretrained, asked)


def _built(pretrained: Pretrained, asked: _Arguments) -> LoadedModel:
  """The model of a checkpoint that has been read."""
  for note in pretrained.notes:
    _log.warning(note)
  if not pretrained.architecture.num_classes and not asked.num_classes:
    _log.warning('The checkpoint has no head: it is for features, or for fine-tuning (num_classes=…).')
  own, num_classes = pretrained.architecture, asked.num_classes
  size = own.image_size if asked.image_size is None else asked.image_size
  model = own.model
  if asked.patch is not None:
    model = with_told('The checkpoint', model.with_one_patch_size(), {'patch': asked.patch})
  model.grid(size, 'image_size')  # refuses a size that the patches do not divide, by the argument's name
  new_head = num_classes is not None and num_classes != own.num_classes
  if asked.token_merging:
    model = model.with_token_merging(asked.token_merging, 'load')
  if asked.dtype is not None:
    model = dataclasses.replace(model, dtype=asked.dtype)
  if asked.position_resize is not None:  # for images of other sizes too
    model = model.with_position_resize(asked.position_resize)
  if new_head and not asked.keep_pre_logits and isinstance(model, PretrainingOptions):
    model = model.without_pre_logits()
  classes = num_classes if new_head and num_classes is not None else own.num_classes
  architecture = dataclasses.replace(own, model=model, image_size=size, num_classes=classes)
  init = InitConfig(
    position_resize=asked.position_resize,
    reinitialise=('^head/',) if new_head else (),
    ignore=('^pre_logits/',) if new_head else (),
  )
  arrays, report = adapt(pretrained, architecture, init)
  if report.changes():
    _log.warning('%s', report)
  preprocess, link = pretrained.preprocess.at(size), 'softmax' if new_head else pretrained.link
  most = asked.max_patches or (None if asked.image_size else preprocess.max_patches)
  patch = preprocess.patch
  if most is not None:
    model.check_any_shape('max_patches')
    patch = model.patch_pixels
  preprocess = dataclasses.replace(preprocess, max_patches=most, patch=patch)
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
