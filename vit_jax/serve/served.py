"""What the service asks of a model, from a checkpoint or from a folder that `vit_jax export` has written."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence

import jax
import numpy as np

from vit_jax.export import exported
from vit_jax.export.description import FILE
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel
from vit_jax.loading import load
from vit_jax.pretrained import class_names as class_names_lib
from vit_jax.pretrained.config import Weights
from vit_jax.serve.batching import Function
from vit_jax.visualize import model_parts
from vit_jax.visualize.observations import Observer


@dataclasses.dataclass(frozen=True)
class Served:
  """A model behind the service; threads may call its functions at the same time."""

  name: str  # what people call it
  description: str  # its architecture, a line
  channels: int  # of photos: 3 (RGB) or 1 (luma)
  prepare: Callable[[np.ndarray], np.ndarray]  # uint8 (H, W, C) of any size -> an image of a batch
  example: np.ndarray  # such an image
  # 'probabilities' (B, K) and 'embeddings' (B, D) of batches; 'attention' of one image, uint8 (H, W, C): the photo,
  # bright where the model looks.
  functions: dict[str, Function]
  absent: dict[str, str]  # of these, what the model does not give -> why, a sentence
  num_classes: int
  class_names: tuple[str, ...] | None  # None: classes have numbers only
  batch_size: int  # images at a time that are enough where nobody says
  most: int | None = None  # images at a time, at most


def opened(
  place: str, weights: Weights | None, classes: Sequence[str] | None, class_names: str | None
) -> Served:
  """The model at a place.

  Args:
    place: what `vit_jax.load` takes, or a folder of `vit_jax export`.
    weights: as of `vit_jax.load`.
    classes: texts of which CLIP's or SigLIP's text tower makes the head.
    class_names: a file with a name a line, for a model that has none.

  Raises:
    UserError: there is no such model, or it does not fit what is asked for.
  """
  name = place.rstrip('/').rpartition('/')[2]  # without the folder: clients see the name
  if pathlib.Path(place, FILE).expanduser().is_file():
    if weights or classes:
      raise UserError(f'{place} is exported: --weights and --classes are for vit_jax export; leave them out.')
    model = _of_export(name, place)
  else:
    model = _of_checkpoint(name, load(place, weights=weights, classes=classes))
  if class_names is not None:
    names = class_names_lib.read(class_names, model.num_classes)
    model = dataclasses.replace(model, class_names=names)
  return model


def _of_checkpoint(name: str, model: LoadedModel) -> Served:
  model.squash('The service')
  observer, absent = Observer(model), {}
  functions: dict[str, Function] = {
    'probabilities': lambda images: np.asarray(model.probabilities(model(images))),
    'embeddings': lambda images: np.asarray(model.embeddings(images)),
    'attention': functools.partial(_lit, observer),
  }
  try:
    model.check_classifies(name)
  except UserError as error:
    absent['probabilities'] = f'{str(error).rstrip(".")}, or ask /embed for its embeddings.'
  if 'rollout' in observer.absent:
    absent['attention'] = observer.absent['rollout']
  preprocess = model.preprocess
  return Served(
    name,
    model.config.describe(),
    preprocess.channels,
    lambda pixels: preprocess([pixels])[0],
    np.zeros((*preprocess.size, preprocess.channels), np.float32),
    {function: call for function, call in functions.items() if function not in absent},
    absent,
    0 if 'probabilities' in absent else model.num_classes,
    model.class_names,
    # A processor computes eight images as fast, each, as more of them; an accelerator does not.
    batch_size=8 if jax.default_backend() == 'cpu' else 64,
  )


def _lit(observer: Observer, image: np.ndarray) -> np.ndarray:
  from vit_jax.visualize import figures  # matplotlib takes half a second

  lit = figures.lit(model_parts.photograph(observer.model, image), observer.rollout(image[None]))
  return np.rint(255 * lit).astype(np.uint8)


def _of_export(name: str, place: str) -> Served:
  model = exported.read(place)
  told = model.description
  # A graph that resizes takes batches of one size; photos have many, so each is a batch of its own.
  resizes = told.input == 'images'
  has = [output for output in ('probabilities', 'embeddings') if output in told.outputs]
  remedy = 'export it with --outputs=probabilities,embeddings'
  if not has:
    raise UserError(f'{place} was exported without probabilities and embeddings; {remedy}.')
  absent = {
    output: f'{name} was exported without {output}; {remedy}.'
    for output in ('probabilities', 'embeddings')
    if output not in has
  }
  shape, kind = (*told.preprocess.size, told.preprocess.channels), np.uint8 if resizes else np.float32
  return Served(
    name,
    f'{told.architecture}, {told.format}, {told.precision}',
    told.preprocess.channels,
    (lambda pixels: pixels) if resizes else (lambda pixels: told.preprocess([pixels])[0]),
    np.zeros(shape, kind),
    {output: lambda images, output=output: model.outputs(images)[output] for output in has},
    {**absent, 'attention': 'An exported model shows no attention; serve its checkpoint.'},
    0 if 'probabilities' in absent else told.num_classes,
    told.classes,
    batch_size=8,
    most=1 if resizes else None,
  )
