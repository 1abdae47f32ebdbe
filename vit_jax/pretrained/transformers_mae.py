"""transformers' ViTMAE: the encoder by itself, and for a masked autoencoder its decoder too."""

import dataclasses
from typing import Any

import numpy as np

from vit_jax.foundation import pytrees
from vit_jax.models.mae import MaeConfig
from vit_jax.pretrained.base import Pretrained, ReadOptions, UnknownModelError
from vit_jax.pretrained.json_values import JsonObject
from vit_jax.pretrained.safetensors_files import TensorFiles
from vit_jax.pretrained.torch_names import HEAD_PATHS, Export, Layout, Rule, layer, norm
from vit_jax.pretrained.transformers_family import IMAGENET, UNUSED
from vit_jax.pretrained.transformers_vit import BLOCK, VIT, ViTFormat

_LEFT_OUT = 'The decoder, which only pre-training uses, is left out.'
_POSITIONS = 'decoder.decoder_pos_embed'  # which are fixed
_TOLERANCE = 1e-4  # of positions that count as fixed
# The names of the decoder's blocks by versions of transformers up to 4, and from 5 on.
_BLOCKS = ('decoder.decoder_layers.', 'decoder.decoder_encoder.layer.')
_PREFIX = 'vit.'


def _decoder(blocks: str) -> tuple[Rule, ...]:
  """The rules of the decoder; `blocks` is one of the two names of its blocks."""
  return (
    *layer('decoder/embedding', 'decoder.decoder_embed'),
    Rule('decoder/mask_token', 'decoder.mask_token'),
    *norm('decoder/norm', 'decoder.decoder_norm'),
    *layer('head', 'decoder.decoder_pred'),
    *(
      dataclasses.replace(
        rule, path=f'decoder/{rule.path}', name=blocks + rule.name.removeprefix('encoder.layer.')
      )
      for rule in BLOCK
      if rule.path.startswith('blocks/')
    ),
  )


class MaeFormat(ViTFormat):
  """A folder of `ViTMAEModel` or `ViTMAEForPreTraining`.

  Of the latter the encoder is read as a Vision Transformer, or, where the caller asks for the decoder, all of it as a
  masked autoencoder. A masked autoencoder is written with its decoder.
  """

  title = "a folder of transformers' ViTMAE"
  families = {
    'vit_mae': dataclasses.replace(
      VIT,
      stem='ViTMAE',
      prefix=_PREFIX,
      preprocess=IMAGENET,
      classifier=None,
      ignored={**UNUSED, r'(?:vit\.)?decoder\..*': _LEFT_OUT},
    )
  }
  has_pooler = False

  def layout(self, files: TensorFiles, values: JsonObject, options: ReadOptions) -> Layout:
    layout = super().layout(files, values, options)
    if not options.pretraining or _POSITIONS not in files.shapes:
      return layout
    assert layout.tokens is not None, 'a Vision Transformer has tokens'
    architecture, tokens, model = layout.architecture, layout.tokens, _with_decoder(layout, values)
    blocks = next((name for name in _BLOCKS if any(key.startswith(name) for key in files.shapes)), _BLOCKS[0])
    rules = _decoder(blocks)
    ignored = {name for name in layout.ignored if not name.startswith('decoder.')} | {_POSITIONS}
    positions = tokens.position
    fixed = model.fixed_positions(model.grid(architecture.image_size))
    assert fixed is not None, "those of 'sincos2d_mae' are fixed"
    if positions in files.shapes and np.allclose(files.read(positions), fixed, atol=_TOLERANCE):
      ignored.add(positions)
      tokens = dataclasses.replace(tokens, position=None)
    else:
      model = model.with_learned_positions()
    return dataclasses.replace(
      layout,
      architecture=dataclasses.replace(architecture, model=model),
      rules=layout.rules + rules,
      tokens=tokens,
      ignored=frozenset(ignored),
      notes=tuple(note for note in layout.notes if note != _LEFT_OUT),
    )

  def export(self, pretrained: Pretrained) -> Export:
    model = pretrained.architecture.model
    if type(model) is not MaeConfig:
      return super().export(pretrained)
    architecture = dataclasses.replace(pretrained.architecture, model=model.encoder)
    params = pytrees.flatten(pretrained.params)
    own = {path: leaf for path, leaf in params.items() if not path.startswith(('decoder/', 'head/'))}
    export = super().export(
      dataclasses.replace(pretrained, architecture=architecture, params=pytrees.unflatten(own))
    )
    export = export.prefixed(_PREFIX)
    positions = model.decoder.fixed_positions(model.grid(architecture.image_size))
    assert positions is not None, 'those of a decoder are fixed'
    return dataclasses.replace(
      export,
      rules=export.rules + _decoder(_BLOCKS[0]),
      config=export.config | _written(model),
      constants={_POSITIONS: positions},
      dropped=export.dropped - HEAD_PATHS,
    )


def _with_decoder(layout: Layout, values: JsonObject) -> MaeConfig:
  """The masked autoencoder of an encoder and what config.json says of the decoder."""
  width = values.integer('decoder_hidden_size', 512)
  if values.integer('decoder_intermediate_size', 2048) != 4 * width:
    raise UnknownModelError(f'its decoder of width {width} has MLPs of another size than {4 * width}')
  encoder = layout.architecture.model
  options: dict[str, Any] = {
    field.name: getattr(encoder, field.name) for field in dataclasses.fields(encoder)
  }
  options |= {
    'pool': 'none',
    'class_token': True,
    'position': 'sincos2d_mae',
    'patch_dropout': values.number('mask_ratio', 0.75, low=0, high=0.999),
    'decoder_width': width,
    'decoder_depth': values.integer('decoder_num_hidden_layers', 8),
    'decoder_heads': values.integer('decoder_num_attention_heads', 16),
  }
  return MaeConfig(**options)


def _written(model: MaeConfig) -> dict[str, Any]:
  """What config.json says of the decoder; that patches are normalised is the usual, and no format of ours tells."""
  return {
    'architectures': ['ViTMAEForPreTraining'],
    'decoder_hidden_size': model.decoder_width,
    'decoder_intermediate_size': 4 * model.decoder_width,
    'decoder_num_hidden_layers': model.decoder_depth,
    'decoder_num_attention_heads': model.decoder_heads,
    'mask_ratio': model.patch_dropout,
    'norm_pix_loss': True,
  }
