"""The models that an objective asks beside the one that is trained: arguments of the step, which it never changes."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.checkpoint import checksums
from vit_jax.config import Config
from vit_jax.data.config import DataConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture, Model
from vit_jax.objectives.base import FrozenModel, Predictor
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding as sharding_lib
from vit_jax.parallel.agreement import check_arrays
from vit_jax.pretrained import formats, kept_head
from vit_jax.pretrained.adapt import adapt
from vit_jax.pretrained.base import Pretrained, no_teacher
from vit_jax.pretrained.config import InitConfig

Params = dict[str, Any]


class _Network(NamedTuple):
  """A frozen model, to which `nnx.merge` gives its parameters."""

  wanted: FrozenModel  # what the objective asks for
  architecture: Architecture
  preprocess: Preprocess  # how images become its input
  graphdef: nnx.GraphDef
  shapes: Params  # its parameters' ShapeDtypeStructs with their shardings


class FrozenModels:
  """All frozen models of a run. Nothing is read before it is asked for, so that an evaluation needs no teacher.

  Attributes:
    digests: checkpoint -> digest of its parameters as they were read; {} before `read`.
  """

  def __init__(self, config: Config, mesh: jax.sharding.Mesh, num_classes: int):
    """`num_classes`: outputs of the run's head, and of theirs."""
    self._config, self._mesh, self._num_classes = config, mesh, num_classes
    self.digests: dict[str, str] = {}

  @functools.cached_property
  def _networks(self) -> tuple[_Network, ...]:
    return tuple(self._network(wanted) for wanted in self._config.objective.frozen_models())

  @property
  def shapes(self) -> tuple[Params, ...]:
    """The parameters of each as ShapeDtypeStructs with their shardings; () where the objective asks none.

    Raises UserError for a checkpoint that is not there, is damaged, or is of other classes or channels than the run.
    """
    return tuple(network.shapes for network in self._networks)

  def forward_flops(self) -> int:
    """FLOPs of the logits of all of them, of one image."""
    return sum(network.architecture.forward_flops() for network in self._networks)

  def read(self, class_names: Sequence[str]) -> tuple[tuple[Params, ...], str]:
    """The parameters of each on the mesh, the rows of each head in the order of `class_names`, and an account of them.

    Raises UserError as `shapes`, or where a checkpoint does not have the data's classes.
    """
    params, texts = [], []
    for network in self._networks:
      checkpoint = network.wanted.checkpoint
      pretrained = formats.read(checkpoint)
      self.digests[checkpoint] = checksums.digest(pytrees.flatten(pretrained.params))
      self._check_link(checkpoint, pretrained)
      if class_names:
        pretrained = kept_head.matched(
          pretrained,
          class_names,
          self._num_classes,
          what=checkpoint,
          remedy='choose a teacher that was trained on the classes of config.data, or set '
          '--config.objective.teacher_classes=number where these are the same under other names',
          by=network.wanted.classes,
        )
      arrays, report = adapt(pretrained, network.architecture, InitConfig(reinitialise=()))
      check_arrays(f'the parameters of {checkpoint}', arrays)
      texts.append('\n'.join([f'Frozen parameters from {checkpoint}', str(report), *pretrained.notes]))
      params.append(sharding_lib.place_tree(arrays, network.shapes))
    return tuple(params), '\n'.join(texts)

  def predictors(self, params: Sequence[Params]) -> tuple[Predictor, ...]:
    """Functions from the run's images to logits, to be called within a step, for parameters as `shapes` has them."""
    data = self._config.data

    def predictor(network: _Network, params: Params) -> Predictor:
      def predict(images: jax.Array) -> jax.Array:
        model: Model = nnx.merge(network.graphdef, params)
        return model(_prepared(images, data, network.preprocess, network.architecture.image_size))

      return predict

    return tuple(predictor(*each) for each in zip(self._networks, params, strict=True))

  def _network(self, wanted: FrozenModel) -> _Network:
    own = formats.architecture(wanted.checkpoint)
    self._check_fit(wanted.checkpoint, own)
    model = own.model.with_learned_positions()  # as the formats read fixed ones
    if wanted.dtype is not None:
      model = dataclasses.replace(model, dtype=wanted.dtype)
    size = own.image_size
    if wanted.image_size is not None:
      size = wanted.image_size
      model.grid(size, 'config.objective.teacher_size')  # raises where its patches do not fit
    architecture = dataclasses.replace(own, model=model, image_size=size)
    preprocess = formats.preprocess(wanted.checkpoint, image_size=own.image_size)
    sharding = mesh_lib.batch_sharding(self._mesh)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: architecture.build(nnx.Rngs(0), sharding)))
    shapes = nnx.to_pure_dict(state)
    shardings = sharding_lib.param_shardings(
      shapes, model.sharding_rules, self._mesh, self._config.mesh.min_shard_size
    )
    shapes = sharding_lib.with_shardings(shapes, shardings)
    return _Network(wanted, architecture, preprocess, graphdef, shapes)

  def _check_fit(self, checkpoint: str, own: Architecture) -> None:
    """Raises UserError for a model that cannot say anything of the run's images and classes."""
    if not own.num_classes:
      raise no_teacher(checkpoint)
    if not own.model.classifies_images or own.num_classes != self._num_classes:
      raise UserError(
        f'{checkpoint} has logits of {own.num_classes} classes and the run of {self._num_classes}; choose a teacher '
        f'that was trained on the classes of config.data, or fine-tune it on them.'
      )
    if own.channels != self._config.data.channels:
      raise UserError(
        f'{checkpoint} takes images of {own.channels} channels, and config.data.channels is '
        f'{self._config.data.channels}; set --config.data.channels={own.channels}.'
      )

  def _check_link(self, checkpoint: str, pretrained: Pretrained) -> None:
    """Raises UserError for sigmoids that would be taken for a softmax. Not all formats tell, so not conversely."""
    if pretrained.link == 'sigmoid' and self._config.objective.link == 'softmax':
      raise UserError(
        f"{checkpoint} was trained with sigmoids, and config.objective.loss is 'softmax'; set "
        f'--config.objective.loss=sigmoid.'
      )


def _prepared(
  images: jax.Array, data: DataConfig, preprocess: Preprocess, size: tuple[int, int]
) -> jax.Array:
  """A run's images (B, H, W, C), in the value range of `data`, as another model's input (B, *size, C); both float32."""
  low, high = data.value_range
  scale = 1 / ((high - low) * np.asarray(preprocess.std))
  offset = -(low / (high - low) + np.asarray(preprocess.mean)) / np.asarray(preprocess.std)
  if not (np.allclose(scale, 1) and np.allclose(offset, 0)):
    images = images * scale.astype(np.float32) + offset.astype(np.float32)
  if images.shape[1:3] != size:
    images = jax.image.resize(images, (len(images), *size, images.shape[3]), 'bilinear')
  return jnp.asarray(images)
