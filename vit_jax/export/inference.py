"""The function that is exported: a loaded model, in the form that runs fastest, from its input to what is asked for."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel, attention_of, embeddings_of, features_of
from vit_jax.models.base import Architecture, Model, ModelConfig
from vit_jax.models.capabilities import Attends

# What a graph may give, by the names that `LoadedModel` has for it.
OUTPUTS = ('probabilities', 'logits', 'embeddings', 'features', 'attention')


def rebuilt(model: LoadedModel, config: ModelConfig) -> Model:
  """The network with other options, which leave the parameters as they are."""
  architecture = Architecture(config, model.preprocess.size, model.preprocess.channels, model.num_classes)
  graphdef, _ = architecture.graph_and_shapes()
  return nnx.merge(graphdef, nnx.state(model.module))


def for_inference(model: LoadedModel, dtype: str) -> Model:
  """The network with its blocks unrolled, without kernels of some devices, computing in `dtype`."""
  config = dataclasses.replace(model.config.on_any_device(), unroll=True, remat=None, dtype=dtype)
  return rebuilt(model, config)


def checked_outputs(model: LoadedModel, names: Sequence[str]) -> tuple[str, ...]:
  """The outputs that are asked for, or those that the model has; UserError for one that it does not have."""
  classifies = model.num_classes > 0 and model.config.classifies_images
  usual = ('probabilities',) if classifies else ('embeddings',)
  for name in names:
    if name not in OUTPUTS:
      raise UserError(f'--outputs has {name!r}; choose among {", ".join(OUTPUTS)}.')
    if name in ('probabilities', 'logits') and not classifies:
      raise UserError(
        f'--outputs has {name!r}, and the model has no head for images; choose among {", ".join(OUTPUTS[2:])}.'
      )
    if name == 'attention' and not isinstance(model.module, Attends):
      raise UserError(f'--outputs has {name!r}, and {model.config.title} has none; leave it out.')
  return tuple(dict.fromkeys(names)) or usual


def function(model: LoadedModel, outputs: Sequence[str]) -> Callable[[Model, jax.Array], dict[str, Any]]:
  """A function from the network and images (B, H, W, C), as `preprocess` makes them, to the outputs by their names."""

  def of(module: Model, images: jax.Array) -> dict[str, Any]:
    computed: dict[str, Callable[[], Any]] = {
      'logits': lambda: module(images),
      'probabilities': lambda: model.probabilities(module(images)),
      'embeddings': lambda: embeddings_of(module, images),
      'features': lambda: features_of(module, images).astype('float32'),
      'attention': lambda: attention_of(module, images),
    }
    return {name: computed[name]() for name in outputs}

  return of
