"""Images through training: what the model of each kept checkpoint of a run makes of them."""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from vit_jax.checkpoint.store import open_store
from vit_jax.foundation import buckets
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel
from vit_jax.loading import load
from vit_jax.pretrained.config import Weights
from vit_jax.visualize import measures
from vit_jax.visualize.observations import Observation, Observer


class Moment(NamedTuple):
  """An image and what the model of one step makes of it; a colour means the same in neighbouring steps."""

  step: int
  seen: Observation


def chosen_steps(checkpoint: str, texts: Sequence[str]) -> list[int]:
  """The steps that --steps names, ['all'] or numbers, in ascending order, of a workdir that may be in a bucket.

  Raises UserError where the checkpoint is no run with kept steps, or has no such step.
  """
  kept = open_store(_directory(checkpoint)).committed()
  if not kept:
    raise UserError(f'--steps is of a training run, and {checkpoint} has no checkpoints; give its workdir.')
  if list(texts) == ['all']:
    return kept
  wrong = [text for text in texts if not text.isdecimal() or int(text) not in kept]
  if wrong:
    shown = ', '.join(map(str, kept))
    raise UserError(
      f'--steps has {wrong[0]}, and {checkpoint} keeps {shown}; choose from these, or write all.'
    )
  return sorted({int(text) for text in texts})


def models(
  checkpoint: str, steps: Sequence[int], image_size: tuple[int, int] | None, weights: Weights | None
) -> Iterator[tuple[int, LoadedModel]]:
  """Each step and its model, loaded one after the other; the arguments beside the steps are those of `load`."""
  for step in steps:
    yield step, load(f'{_directory(checkpoint)}/{step}', image_size=image_size, weights=weights)


def _directory(checkpoint: str) -> str:
  """The path or address of a run's checkpoints."""
  if buckets.is_bucket(checkpoint):
    return f'{checkpoint.rstrip("/")}/checkpoints'
  return str(pathlib.Path(checkpoint).expanduser() / 'checkpoints')


def watch(
  models: Iterable[tuple[int, LoadedModel]],
  images: Sequence[Image.Image | np.ndarray],
  class_names: tuple[str, ...] | None = None,
) -> list[list[Moment]]:
  """The moments of each image, Pillow's or uint8 pixels: what each (step, model), in ascending order, makes of it."""
  moments: list[list[Moment]] = [[] for _ in images]
  components: list[list[np.ndarray | None]] = [[] for _ in images]  # of each depth, one step before
  for step, model in models:
    observer = Observer(model, class_names)
    for number, image in enumerate(images):
      seen = observer.look(image)
      tokens = observer.tokens(image)
      if tokens is not None:
        before = components[number] or [None] * len(tokens)
        pairs = [measures.token_colours(*pair) for pair in zip(tokens, before, strict=True)]
        components[number] = [component for _, component in pairs]
        seen = dataclasses.replace(seen, layers=np.stack([colours for colours, _ in pairs]))
      moments[number].append(Moment(step, seen))
  return moments
