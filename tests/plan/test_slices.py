"""Over two slices only gradients cross the network: read from the program that the TPU compiler makes."""

import itertools

import numpy as np
import pytest
import tiny

from vit_jax import config as c
from vit_jax.parallel import hardware
from vit_jax.plan import hlo, timing, topology
from vit_jax.training.run import Dataset, Run


@pytest.mark.slow
@pytest.mark.parametrize('mesh', [c.MeshConfig(fsdp=4), c.MeshConfig(replica=2, fsdp=2)])
def test_only_gradients_cross_two_slices(mesh):
  pytest.importorskip('libtpu')
  machine = topology.describe('v5e:2x2*2')
  config = c.Config(
    total='10 steps',
    batch_size=32,
    model=tiny.options(dtype='bfloat16'),
    data=c.DataConfig(image_size=(12, 8)),
    optimizer=c.OptimizerConfig(clip_norm=1.0),
    mesh=mesh,
  )
  run = Run(config, Dataset(1000, num_classes=5), machine.devices)
  program = run.program
  module = hlo.parse(program.step.lower(program.state, program.batch, run.frozen.shapes).compile().as_text())

  devices = list(run.mesh.devices.flat)
  slices = np.array([device.slice_index for device in devices])
  assert set(slices) == {0, 1}
  # No collective has devices of both slices in one of its groups.
  collectives = ('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all')
  for instruction in itertools.chain.from_iterable(module.computations.values()):
    if instruction.opcode.removesuffix('-start') in collectives:
      groups = slices[hlo.groups(instruction, len(devices))]
      assert (groups == groups[:, :1]).all(), instruction

  traffic = timing.estimate(module, devices, hardware.of(machine.kind)).traffic
  (crossing,) = [kind for kind in traffic if kind.endswith('between slices')]
  assert crossing == 'all-reduce between slices'
  # The gradients, each split over the fsdp devices of a slice or whole, in bfloat16 or float32; and a few scalars.
  parameters = sum(leaf.size for leaf in run.architecture.shapes().values())
  assert 2 * parameters / mesh.fsdp < traffic[crossing].bytes < 4 * parameters + 64 * 1024
