"""Axial attention and MLPs with locality: other resolutions and the compiled step.

The logits are tested in test_vit.py, the weights in test_attention.py, training on a mesh in test_training.py.
"""

import math
import re

import jax
import numpy as np
import numpy_vit
import pytest
import tiny
from flax import nnx

from vit_jax import config as c
from vit_jax.training.run import Dataset, Run

AXIAL = tiny.options(axial=True, mlp='local', qk_norm=True, pool='gap')


@pytest.mark.slow
def test_images_of_another_size_equal_numpy():
  graphdef, params = tiny.build(AXIAL)
  x = tiny.images(image_size=(8, 16))  # 2 x 4 patches, of a model for 3 x 2
  vit = nnx.merge(graphdef, params)
  positions = vit.positions((8, 16))
  expected = numpy_vit.forward(params | {'position_embedding': positions}, x, pool=vit.config.pool)
  np.testing.assert_allclose(tiny.apply(graphdef, params, x), expected['logits'], atol=1e-5)
  with jax.default_matmul_precision('highest'):
    np.testing.assert_allclose(vit.features(x, layer=0), expected['blocks'][0], atol=1e-5)


def _lowered(model: c.ViTConfig):
  """The training step of 16 images of 24 x 20 patches on eight devices."""
  config = c.Config(
    total='4 steps',
    batch_size=16,
    model=model,
    data=c.DataConfig(image_size=(96, 80)),
    mesh=c.MeshConfig(data=2, fsdp=2, tensor=2, min_shard_size=1),
  )
  program = Run(config, Dataset(80, num_classes=6)).program
  return program.step.lower(program.state, program.batch)


@pytest.mark.slow
def test_the_compiled_step_has_no_array_of_all_pairs_of_tokens():
  """A device has its own images only."""
  axial, full = (_lowered(tiny.options(axial=axial, pool='gap')) for axial in (True, False))
  n, d = 24 * 20, 32
  assert f'{n}x{n}xf32>' in full.as_text()
  axial = axial.compile()
  assert f'{n},{n}]' not in axial.as_text()
  images = 16 // 4
  # The residual stream, the same as lines, and what the forward loop leaves for the backward one.
  shapes = [tuple(map(int, s.split(','))) for s in re.findall(r'f32\[([\d,]+)\]', axial.as_text())]
  streams = {s[0] for s in shapes if s[-2:] == (n, d) and len(s) == 3}
  assert images in streams and 16 not in streams
  lines = {math.prod(s[:-2]) for s in shapes if s[-2:] in ((20, d), (24, d))}
  assert max(lines) <= 2 * images * 24  # times the two blocks of the loop's stack
