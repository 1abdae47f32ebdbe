"""The text tower of a folder of CLIP or SigLIP, read and written beside the image tower for runs that train both."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.foundation import pytrees
from vit_jax.models.text_tower import TextConfig
from vit_jax.models.two_towers import TwoTowersConfig
from vit_jax.pretrained import zero_shot
from vit_jax.pretrained.base import Pretrained, UnknownModelError
from vit_jax.pretrained.huggingface import Unfit
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import Derived, Export, Layout, Rule
from vit_jax.pretrained.transformers_family import WRITTEN_ACTIVATIONS
from vit_jax.pretrained.zero_shot import TextLayout

# What must be alike where our towers share an option, or one follows from another.
_SHARED = ('activation', 'norm_epsilon', 'causal', 'features', 'features_bias')
_NO_TOKENIZER = (
  'The folder has no tokenizer; copy the files of the one that the model was trained with into it.'
)


def with_texts(layout: Layout, files: TensorFiles, texts: TextLayout) -> Layout:
  """What a folder holds of both towers, `layout` being that of its image tower; UnknownModelError: we have no such."""
  images, of, vocabulary = layout.architecture.model, texts.config, files.shapes[texts.embedding][0]
  model = TwoTowersConfig(
    **{field.name: getattr(images, field.name) for field in dataclasses.fields(images)},
    text_width=of.width,
    text_mlp_dim=of.mlp_dim,
    text_depth=of.depth,
    text_heads=of.heads,
    text_length=texts.length,
    text_vocabulary=vocabulary,
    text_causal=of.causal,
    text_end={None: vocabulary - 1, -1: None}.get(texts.end, texts.end),
  )
  if differing := _differing(model.text, of):
    raise UnknownModelError(f'its text tower has another {differing} than two towers of ours')
  scalars = _scalars(texts)
  return dataclasses.replace(
    layout,
    architecture=dataclasses.replace(layout.architecture, model=model),
    rules=(*layout.rules, *_rules(texts), *(Rule(path, name) for path, name in scalars.items())),
    zeros=layout.zeros | ({'logit_bias'} - scalars.keys()),
    ignored=frozenset(name for name in layout.ignored if not name.startswith(('text_', 'logit_'))),
    derived={**layout.derived, **{name: Derived((1,), (name,), np.ravel) for name in scalars.values()}},
    notes=tuple(note for note in layout.notes if note != zero_shot.LEFT_OUT),
    link=texts.link,
  )


def image_tower(pretrained: Pretrained, model: TwoTowersConfig) -> Pretrained:
  """The image tower by itself, without a head."""
  return pretrained.part(dataclasses.replace(pretrained.architecture, model=model.image_tower))


def section(model: TwoTowersConfig) -> dict[str, Any]:
  """What config.json says of a text tower."""
  of = model.text
  return {
    'hidden_act': WRITTEN_ACTIVATIONS.get(of.activation, of.activation),
    'hidden_size': of.width,
    'intermediate_size': of.mlp_dim,
    'layer_norm_eps': of.norm_epsilon,
    'max_position_embeddings': model.text_length,
    'num_attention_heads': of.heads,
    'num_hidden_layers': of.depth,
    'vocab_size': model.text_vocabulary,
  }


def export(pretrained: Pretrained, of_images: Export, texts: TextLayout, config: Mapping[str, Any]) -> Export:
  """What a folder of two towers is to hold; Unfit: it cannot.

  `of_images` is that of the image tower, with the names in a folder of both, `texts` what is read of `config`, which
  becomes config.json.
  """
  model: Any = pretrained.architecture.model
  if differing := _differing(model.text, texts.config):
    raise Unfit(f'its text tower has another {differing}')
  params, shape = pytrees.flatten(pretrained.params), (1,) if texts.bias else ()
  scalars = {name: np.reshape(params[path], shape) for path, name in _scalars(texts).items()}
  return dataclasses.replace(
    of_images,
    rules=(*of_images.rules, *(rule for rule in _rules(texts) if rule.path in params)),
    config=dict(config),
    constants={**of_images.constants, **scalars},
    dropped=of_images.dropped | {'logit_scale', 'logit_bias'},
    notes=(*of_images.notes, _NO_TOKENIZER),
  )


def _rules(texts: TextLayout) -> tuple[Rule, ...]:
  """Those of the tower, by our paths in two towers."""
  tables = Rule('embedding', texts.embedding), Rule('positions', texts.positions)
  return tuple(dataclasses.replace(rule, path=f'text_tower/{rule.path}') for rule in (*texts.rules, *tables))


def _scalars(texts: TextLayout) -> dict[str, str]:
  """Our path -> their name; CLIP has no bias."""
  return {'logit_scale': texts.scale} | ({'logit_bias': texts.bias} if texts.bias else {})


def _differing(ours: TextConfig, theirs: TextConfig) -> str | None:
  """An option that differs."""
  return next((name for name in _SHARED if getattr(ours, name) != getattr(theirs, name)), None)
