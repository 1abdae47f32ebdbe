"""Unrolled blocks gather each kernel once, for the forward and the backward pass: read from the compiled program."""

import collections
import math
import re

import jax
import numpy as np
import pytest
import run_steps
import tiny

from vit_jax import config as c
from vit_jax.foundation import pytrees
from vit_jax.parallel import hardware
from vit_jax.plan import hlo, timing, topology
from vit_jax.training.run import Dataset, Run

BLOCKS, WIDTH, HIDDEN = 2, 32, 80
FSDP = c.MeshConfig(fsdp=4, min_shard_size=1024)
KERNELS = {WIDTH * WIDTH: 4, WIDTH * HIDDEN: 2}  # of a block: elements -> how many


def _run(devices, mesh: c.MeshConfig, **model) -> Run:
  config = c.Config(
    total='10 steps',
    batch_size=32,
    model=tiny.options(remat='none', mlp_dim=HIDDEN, **model),
    data=c.DataConfig(image_size=(12, 8)),
    optimizer=c.OptimizerConfig(clip_norm=1.0),
    mesh=mesh,
  )
  return Run(config, Dataset(1000, num_classes=5), devices)


def _step(run: Run):
  """The compiled step."""
  program = run.program
  return program.step.lower(program.state, program.batch, {}).compile()


def _gathered(step) -> dict[int, int]:
  """Elements of a kernel -> how many all-gathers of such kernels a compiled step has; a loop counts once."""
  counts = collections.Counter()
  for result in re.findall(r' = (.*?) all-gather\(', step.as_text()):
    for dims in re.findall(r'\w+\[([\d,]*)\]', result):
      counts[math.prod(map(int, filter(None, dims.split(','))))] += 1
  return {size: counts[size] for size in KERNELS}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('unroll', 'tensor', 'times'),
  [(True, 1, BLOCKS), (False, 1, 2), (True, 2, 0)],
  ids=['unrolled: once', 'loop: for both passes', 'split by tensor: never whole'],
)
def test_kernels_are_gathered(unroll, tensor, times):
  mesh = c.MeshConfig(data=1, fsdp=4 // tensor, tensor=tensor, min_shard_size=1024)
  # The head reads all tokens: where it reads one, the last block stands behind the loop on processors.
  step = _step(_run(jax.devices()[:4], mesh, unroll=unroll, pool='gap'))
  assert _gathered(step) == {size: times * each for size, each in KERNELS.items()}


@pytest.mark.slow
def test_a_tpu_gathers_the_kernels_of_unrolled_blocks_once():
  pytest.importorskip('libtpu')
  machine = topology.describe('v5e:2x2')

  def gathers(*, unroll: bool) -> float:
    run = _run(machine.devices, FSDP, unroll=unroll, dtype='bfloat16')
    devices, known = list(run.mesh.devices.flat), hardware.of(machine.kind)
    return timing.estimate(hlo.parse(_step(run).as_text()), devices, known).traffic['all-gather'].count

  # A loop gathers them for both passes; what is beside the blocks is the same.
  assert gathers(unroll=False) - gathers(unroll=True) == BLOCKS * sum(KERNELS.values())


@pytest.mark.nightly
@pytest.mark.slow
def test_gathered_kernels_learn_the_same_as_whole_ones():
  """Three steps on four devices, of which each has a quarter of a kernel or all of it."""
  learned = []
  for mesh in (FSDP, c.MeshConfig(fsdp=1)):
    run = _run(jax.devices()[:4], mesh, unroll=True)
    program, step = run.program, _step(run)
    state = program.init(np.uint32(0))
    for seed in range(3):
      state, _ = step(state, run_steps.batch(program, seed, 5), {})
    learned.append(pytrees.flatten(jax.device_get(state.params)))
  for name, kernel in learned[0].items():
    if not name.endswith('key/bias'):  # its gradient is zero, and Adam makes full steps of rounding errors
      np.testing.assert_allclose(kernel, learned[1][name], rtol=1e-4, atol=1e-6, err_msg=name)
