"""vision_transformer's training step as it is configured, which is for fine-tuning.

Momentum, softmax loss, float32, dropout of 0.1. Its package, of the same name as ours, is imported as
`peer_vit_jax`. What it gives to `pmap` runs under `shard_map`.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types
from typing import Any
from unittest import mock

from peers.program import PIXELS, Recipe, batch_shapes, make_mesh, placed, stub


def lower(checkout: str, variant: str, recipe: Recipe, blocks: int | None, devices):
  """vision_transformer's update step as it is configured; returns the lowered program and its mesh."""
  import jax
  import jax.numpy as jnp
  import optax
  from jax.sharding import NamedSharding
  from jax.sharding import PartitionSpec as P

  stub()
  sys.meta_path.insert(0, RenamedPackage('vit_jax', 'peer_vit_jax', pathlib.Path(checkout)))
  for name in ('checkpoint', 'input_pipeline', 'models'):
    sys.modules[f'peer_vit_jax.{name}'] = mock.MagicMock()
  from peer_vit_jax import models_vit, train, utils
  from peer_vit_jax.configs import models as configs

  options = configs.MODEL_CONFIGS[f'ViT-{variant.replace("/", "_")}'].copy_and_resolve_references()
  options.unlock()
  del options['model_name']
  if blocks is not None:
    options.transformer.num_layers = blocks
  model = models_vit.VisionTransformer(num_classes=recipe.classes, **options)
  rate = utils.create_learning_rate_schedule(20_000, 0.03, 'cosine', 500)
  sgd = optax.sgd(learning_rate=rate, momentum=0.9, accumulator_dtype='bfloat16')
  tx = optax.chain(optax.clip_by_global_norm(1), sgd)
  with mock.patch.object(jax, 'pmap', lambda function, **_: function):
    update_fn = train.make_update_fn(apply_fn=model.apply, accum_steps=1, tx=tx)
  mesh = make_mesh(devices, 'batch')
  in_specs, out_specs = (P(), P(), P('batch'), P()), (P(), P(), P(), P())
  step = jax.shard_map(update_fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

  key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
  images = jnp.ones((1, PIXELS, PIXELS, 3))
  params = jax.eval_shape(lambda: model.init(jax.random.PRNGKey(0), images, train=False))['params']
  state = placed((params, jax.eval_shape(tx.init, params)), NamedSharding(mesh, P()))
  batch = placed(batch_shapes(recipe.classes, 'label'), NamedSharding(mesh, P('batch')))
  return jax.jit(step, donate_argnums=(0, 1)).lower(
    *state, batch, placed(key, NamedSharding(mesh, P()))
  ), mesh


class RenamedPackage(importlib.abc.MetaPathFinder):
  """Imports the package `old` of a folder as `new`, whatever its files call it."""

  def __init__(self, old: str, new: str, folder: pathlib.Path):
    self._old, self._new, self._folder = old, new, folder

  def find_spec(self, fullname: str, path: Any = None, target: types.ModuleType | None = None):
    if fullname.partition('.')[0] != self._new:
      return None
    place = self._folder / self._old / pathlib.Path(*fullname.split('.')[1:])
    if place.is_dir():
      spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
      spec.submodule_search_locations = [str(place)]
      return spec
    loader = RenamingLoader(fullname, str(place.with_suffix('.py')))
    loader.names = self._old.encode(), self._new.encode()
    return importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


class RenamingLoader(importlib.machinery.SourceFileLoader):
  """Reads a source file with one name in place of another; without a kept bytecode."""

  names = b'', b''

  def get_data(self, path):
    return super().get_data(path).replace(*self.names)

  def set_data(self, path, data, *, _mode=0o666):
    """Keeps nothing: the checkout stays as it is."""

  def path_stats(self, path):
    raise OSError('bytecode that lies there is of the other name')
