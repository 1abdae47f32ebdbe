"""The base of a run with an adapter: read again from its address, and compared with what the adapter was trained on."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.adapters import lora
from vit_jax.checkpoint import checksums
from vit_jax.config import Config
from vit_jax.foundation import pytrees
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.models.capabilities import ReconstructionOptions, TextTowerOptions
from vit_jax.pretrained import formats
from vit_jax.pretrained.adapt import adapt
from vit_jax.pretrained.base import Pretrained

Params = dict[str, Any]


def read_checkpoint(config: Config, address: str | None = None) -> Pretrained:
  """The model of config.init.checkpoint, perhaps from another address; raises as `formats.read`."""
  # A format that cannot tell how its tensors are computed is taken to agree with the config.
  assumed = {name: getattr(config.model, name) for name in config.model.function_options}
  source = address or config.init.checkpoint
  assert source is not None
  return formats.read(
    source,
    image_size=config.data.image_size,
    assumed=assumed,
    weights=config.init.weights,
    pretraining=isinstance(config.model, ReconstructionOptions | TextTowerOptions),
  )


def meta(config: Config, base: Pretrained) -> dict[str, Any]:
  """What a checkpoint says of its base: an address that other folders understand, and a checksum of each tensor."""
  address = config.init.checkpoint or ''
  return {
    'address': os.path.abspath(address) if os.path.exists(address) else address,
    'tensors': {
      path: said['checksum'] for path, said in checksums.of_arrays(pytrees.flatten(base.params)).items()
    },
  }


def check_same(known: Mapping[str, Any], now: Mapping[str, Any]) -> None:
  """Raises UserError where a base, whose `meta` is `now`, has other tensors than the one that an adapter belongs to."""
  there, here = known['tensors'], now['tensors']
  changed = [path for path in there | here if there.get(path) != here.get(path)]
  if changed:
    raise UserError(
      f'{now["address"]} is not the base that the adapter was trained on: {changed[0]} and {len(changed) - 1} other '
      'tensors differ; restore that checkpoint.'
    )


def frozen(arrays: Mapping[str, np.ndarray], shapes: Params, checkpoint: str | None) -> dict[str, np.ndarray]:
  """Those of a checkpoint's arrays that an adapter leaves frozen, by path and in the number formats of `shapes`.

  Raises UserError where one of them, or a part of it, would begin anew.
  """
  found = {}
  for path, leaf in pytrees.flatten(shapes).items():
    if path not in arrays or np.ma.is_masked(arrays[path]):
      raise UserError(
        f'{path} does not come from {checkpoint}, and an adapter leaves it as it is; name it in config.adapter.trained.'
      )
    found[path] = np.asarray(arrays[path]).astype(leaf.dtype, copy=False)
  return found


def whole(
  config: Config, architecture: Architecture, trained: Params, known: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """The parameters of a run's model by path: those trained, with the adapters merged into the base, read again.

  `known` is the `meta` of the run's checkpoint. Raises UserError where the base is not there, or another one.
  """
  own, adapter = config.init.checkpoint, config.adapter
  address = own if own and os.path.exists(own) else known['address']
  base = read_checkpoint(config, address)
  check_same(known, meta(config, base) | {'address': address})
  arrays, _ = adapt(base, architecture, config.init)
  shapes = lora.frozen_shapes(pytrees.unflatten(architecture.shapes()), adapter)
  kept = pytrees.unflatten(frozen(arrays, shapes, address))
  merged = pytrees.flatten(lora.merged(kept, trained, adapter.scale))
  return {path: np.asarray(array).astype(np.float32, copy=False) for path, array in merged.items()}
