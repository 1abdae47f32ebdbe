"""Compares what was written with its model, so that no graph is handed on that computes otherwise."""

import dataclasses
import pathlib

import jax.numpy as jnp
import numpy as np

from vit_jax.export import inference
from vit_jax.export.description import FILE
from vit_jax.export.exported import Exported
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel

# What the outputs may differ by, as a share of the largest number of each.
_TOLERANCES = {'float32': 2e-3, 'float16': 5e-2, 'bfloat16': 2e-1}
_SIZES = ((40, 56), (300, 211))


def compared(model: LoadedModel, folder: pathlib.Path) -> str:
  """A sentence with the largest difference of each output, of batches of one and of two images.

  Raises UserError where one is larger than rounding makes it; model.json is removed then, so that nobody serves it.
  """
  exported = Exported(folder)
  description = exported.description
  rng = np.random.default_rng(0)
  channels = model.preprocess.channels
  batches = [[_picture(rng, size, channels) for _ in range(count)] for count, size in enumerate(_SIZES, 1)]
  # A model that computes in bfloat16 by itself is compared in float32: its own rounding is no error of the export.
  module = inference.rebuilt(model, dataclasses.replace(model.config, dtype='float32'))
  of, worst = inference.function(model, description.outputs), {}
  for pictures in batches:
    prepared = model.preprocess(pictures)
    given = np.stack(pictures) if description.input == 'images' else prepared
    expected = of(module, jnp.asarray(prepared))
    for name, value in exported.outputs(given).items():
      wanted = np.asarray(expected[name], np.float32)
      difference = float(np.abs(value.astype(np.float32) - wanted).max())
      worst[name] = max(worst.get(name, 0.0), difference)
      if not difference <= _TOLERANCES[description.precision] * np.abs(wanted).max():
        (folder / FILE).unlink()
        raise UserError(
          f'{folder / description.file} gives other {name} than the model, {difference:.2g} apart; do not use it, and '
          'open an issue that names the checkpoint.'
        )
  shown = ', '.join(f'{name} by {value:.1e}' for name, value in worst.items())
  return f'Compared with the model on {sum(map(len, batches))} images: {shown} at most.'


def _picture(rng: np.random.Generator, size: tuple[int, int], channels: int) -> np.ndarray:
  """uint8 (*size, channels): coarse patches, as photographs have edges and plains."""
  coarse = rng.integers(0, 256, (8, 8, channels), np.uint8)
  rows, columns = (np.arange(side) * 8 // side for side in size)
  return coarse[rows][:, columns]
