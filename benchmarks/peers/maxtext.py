"""A training step with the vision encoder of MaxText's Gemma 3, a SigLIP (src/maxtext/models/gemma3.py).

Liberties:

- MaxText has no classifier: the exit of its encoder lets all tokens pass, behind it stand their mean (no class token)
  and a layer of its `DenseGeneral`, and the step is written here.
- Sharded by its rules for pure FSDP (pure-fsdp.yml). It names no axes for this encoder's MLP, which would leave two
  thirds of the parameters replicated; here the MLP's kernels have those of MaxText's `MlpBlock`. What else has no names
  stays replicated (patches, positions, norms).
- bfloat16 by its own option (`dtype_mm`), with which tokens between blocks are float32 and position embeddings
  bfloat16.
- The rest are its defaults: `dot_product` attention, whose logits are not cast to float32, no rematerialization, blocks
  not scanned (this encoder can do neither). Its configuration is not validated, which would look for devices and set
  XLA_FLAGS.
- Of its dependencies aqt, omegaconf, pathwaysutils, qwix and tokamax are stubbed where they are not installed.
"""

import functools
import importlib.util
import pathlib
import sys
from typing import Any
from unittest import mock

from peers.program import BATCH, PIXELS, Recipe, adam, batch_shapes, make_mesh, placed, stub

STUBS = (
  *('aqt', 'aqt.jax', 'aqt.jax.v2', 'aqt.jax.v2.flax', 'aqt.jax.v2.aqt_tensor', 'omegaconf', 'pathwaysutils'),
  *('pathwaysutils.elastic', 'qwix', 'qwix.pallas', 'qwix._src', 'qwix._src.core', 'tokamax', 'tokamax._src'),
  *('tokamax._src.ops', 'tokamax._src.ops.attention', 'tokamax._src.ops.experimental'),
  *('tokamax._src.ops.experimental.tpu', 'tokamax._src.ops.experimental.tpu.splash_attention'),
)


def lower(checkout: str, variant: str, recipe: Recipe, blocks: int | None, devices):
  """The step; returns the lowered program and its mesh."""
  make_importable(checkout)
  import jax
  import jax.numpy as jnp
  import optax
  from flax import linen as nn
  from flax import nnx
  from jax.sharding import NamedSharding, PartitionSpec
  from maxtext.utils import max_utils

  mesh = make_mesh(devices, 'fsdp')
  config = configuration(checkout, variant, recipe, blocks, len(devices))
  # As in its own train step for NNX: what is no parameter, here the generators of dropout, is part of the state.
  create = lambda: nnx.split(classifier(config, recipe, mesh), nnx.Param, ...)
  graph, params, rest = nnx.eval_shape(create)
  tx = adam()
  replicated, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ('fsdp',)))
  where = sharded_by_rules(params, config, mesh)
  state = {'params': params, 'opt': jax.eval_shape(tx.init, params), 'rest': rest}
  shardings = {
    'params': where,
    'opt': optax.tree_map_params(
      tx, lambda _, place: place, state['opt'], where, transform_non_params=lambda _: replicated
    ),
    'rest': jax.tree.map(lambda _: replicated, rest),
  }

  @functools.partial(jax.jit, donate_argnums=(0,), out_shardings=(shardings, replicated))
  def update_fn(train_state, batch):
    def loss_fn(params):
      model = nnx.merge(graph, params, train_state['rest'], copy=True)
      logits = model(batch['image']).astype(jnp.float32)
      losses = optax.sigmoid_binary_cross_entropy(logits, batch['labels'])
      return losses.sum(-1).mean(), nnx.state(model, nnx.Not(nnx.Param))

    (loss, rest), grads = jax.value_and_grad(loss_fn, has_aux=True)(train_state['params'])
    updates, opt = tx.update(grads, train_state['opt'], train_state['params'])
    params = optax.apply_updates(train_state['params'], updates)
    norms = {'grad_norm': max_utils.l2norm_pytree(grads), 'param_norm': max_utils.l2norm_pytree(params)}
    return {'params': params, 'opt': opt, 'rest': rest}, {'loss': loss, **norms}

  batch = placed(batch_shapes(recipe.classes, 'labels'), split)
  with jax.set_mesh(mesh), nn.logical_axis_rules(config.logical_axis_rules):
    return update_fn.lower(jax.tree.map(placed, state, shardings), batch), mesh


def make_importable(checkout: str) -> None:
  """Puts the checkout on the path, and stubs in place of the dependencies that are not installed."""
  stub()
  sys.path.insert(0, str(pathlib.Path(checkout) / 'src'))
  for name in STUBS:
    package = name.partition('.')[0]
    stubbed = isinstance(sys.modules.get(package), mock.MagicMock)  # of which find_spec would raise
    if stubbed or importlib.util.find_spec(package) is None:
      sys.modules.setdefault(name, mock.MagicMock())


def configuration(checkout: str, variant: str, recipe: Recipe, blocks: int | None, devices: int):
  """MaxText's defaults for pure FSDP, with the encoder's sizes and the recipe's dropout."""
  import yaml
  from maxtext.common.common_types import DecoderBlockType, ShardMode
  from maxtext.configs import types

  from vit_jax.models.vit_sizes import VARIANTS

  size = VARIANTS[variant]
  values: dict[str, Any] = {}
  for name in ('base.yml', 'custom_mesh_and_rule/pure-fsdp.yml'):
    values |= yaml.safe_load((pathlib.Path(checkout) / 'src/maxtext/configs' / name).read_text())
  values |= {
    'image_size_for_vit': PIXELS,
    'patch_size_for_vit': size.patch,
    'conv_stride_for_vit': size.patch,
    'hidden_size_for_vit': size.width,
    'num_hidden_layers_for_vit': size.depth if blocks is None else blocks,
    'num_attention_heads_for_vit': size.heads,
    'intermediate_size_for_vit': size.mlp_dim,
    'dropout_rate': recipe.dropout,
    'dtype_mm': 'bfloat16',
    'per_device_batch_size': BATCH // devices,
    'shard_mode': ShardMode(values['shard_mode']),
    'logical_axis_rules': [tuple(rule) for rule in values['logical_axis_rules']],
    'decoder_block': DecoderBlockType(values['decoder_block']),
  }
  return types.MaxTextConfig.model_construct(**values)


def classifier(config, recipe: Recipe, mesh):
  """Its encoder with a head: images (B, H, W, 3) -> logits (B, classes)."""
  import jax.numpy as jnp
  from flax import nnx
  from maxtext.layers.linears import DenseGeneral
  from maxtext.models.gemma3 import Gemma3VisionEncoderLayer
  from maxtext.utils import sharding

  class Classifier(nnx.Module):
    def __init__(self, rngs):
      width = config.hidden_size_for_vit
      dense = functools.partial(DenseGeneral, width, dtype=config.dtype_mm, use_bias=True, rngs=rngs)
      self.encoder = Gemma3VisionEncoderLayer(config, mesh, rngs=rngs)
      self.encoder.VisionExit.output_length = (PIXELS // config.patch_size_for_vit) ** 2
      self.pre_logits = dense(width, kernel_axes=('embed', None)) if recipe.pre_logits else None
      self.head = dense(recipe.classes, kernel_axes=('embed_vocab', 'vocab'))

    def __call__(self, images):
      x = self.encoder(images, deterministic=False)[:, 0].mean(1)  # of (B, 1, tokens, width)
      logits = self.head(x if self.pre_logits is None else jnp.tanh(self.pre_logits(x)))
      axes = 'activation_embed_and_logits_batch', 'activation_vocab'
      return sharding.maybe_shard_with_logical(
        logits, axes, mesh, config.shard_mode, rules=config.logical_axis_rules
      )

  return Classifier(nnx.Rngs(params=0, dropout=1))


def sharded_by_rules(params, config, mesh):
  """The sharding of each parameter by MaxText's names of its axes; of the MLP's kernels by those of `MlpBlock`."""
  from flax import nnx
  from maxtext.utils import sharding

  def place(path, variable):
    metadata = variable.get_metadata()
    names = next((metadata[key] for key in ('out_sharding', 'sharding') if metadata.get(key)), ())
    if path[-1] == 'kernel' and 'MlpBlockViT_0' in path:
      names = ('embed', 'mlp') if path[-2] == 'Dense_0' else ('mlp', 'embed')
    return variable.replace(sharding.create_sharding(mesh, names, rules=config.logical_axis_rules))

  return nnx.map_state(place, params)
