"""Programs of the TPU compiler: over two slices only gradients cross the network; one of v7x has a time."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
  _, text = hlo.compile_and_print(program.step.lower(program.state, program.batch, run.frozen.shapes))
  module = hlo.parse(text or '')

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


def test_a_program_that_xla_cannot_read_again_has_a_time():
  """On TPU v7x the SparseCore gathers, which libtpu 0.0.51 writes in a form that XLA of jax 0.10.2 refuses."""
  pytest.importorskip('libtpu')
  machine = topology.describe('tpu7x:2x2x1')
  split = NamedSharding(Mesh(np.array(machine.devices), ('x',)), PartitionSpec('x'))
  tokens = jax.ShapeDtypeStruct((8 * 1024, 1024), jnp.bfloat16, sharding=split)
  kernel = jax.ShapeDtypeStruct((1024, 4096), jnp.bfloat16, sharding=split)
  _, text = hlo.compile_and_print(jax.jit(lambda x, w: jnp.tanh(x @ w).sum()).lower(tokens, kernel))
  assert text and 'async_execution_thread="sparsecore"' in text
  known = hardware.of(machine.kind)
  estimate = timing.estimate(hlo.parse(text), machine.devices, known)
  gathered = estimate.traffic['all-gather']
  assert (gathered.count, gathered.bytes) == (1, 2 * 1024 * 4096) and estimate.exposed >= gathered.seconds
  # No faster than its products on the matrix unit, and not ten times slower.
  least = 2 * 1024 * 1024 * 4096 / known.peak_flops
  assert least < estimate.compute < 10 * least
