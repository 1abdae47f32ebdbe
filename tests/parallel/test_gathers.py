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
from vit_jax.parallel import hardware
from vit_jax.plan import hlo, timing, topology
from vit_jax.training.run import Dataset, Run

BLOCKS, WIDTH, HIDDEN = 2, 32, 80
FSDP = c.MeshConfig(fsdp=4, min_shard_size=1024)
KERNELS = {WIDTH * WIDTH: 4, WIDTH * HIDDEN: 2}  # of a block: elements -> how many


def _run(devices, mesh: c.MeshConfig, image_size: tuple[int, int] = (12, 8), **model) -> Run:
  config = c.Config(
    total='10 steps',
    batch_size=32,
    model=tiny.options(remat='none', mlp_dim=HIDDEN, **model),
    data=c.DataConfig(image_size=image_size),
    optimizer=c.OptimizerConfig(clip_norm=1.0),
    mesh=mesh,
  )
  return Run(config, Dataset(1000, num_classes=5), devices)


def _step(run: Run):
  """The compiled step."""
  program = run.program
  return program.step.lower(program.state, program.batch, {}).compile()


@pytest.fixture(scope='module')
def unrolled():
  """(program, compiled step) of unrolled blocks whose kernels are split over four CPU devices."""
  run = _run(jax.devices()[:4], FSDP, unroll=True)
  return run.program, _step(run)


def _gathered(step) -> dict[int, int]:
  """Elements of a kernel -> how many all-gathers of such kernels a compiled step has; a loop counts once."""
  counts = collections.Counter()
  for result in re.findall(r' = (.*?) all-gather\(', step.as_text()):
    for dims in re.findall(r'\w+\[([\d,]*)\]', result):
      counts[math.prod(map(int, filter(None, dims.split(','))))] += 1
  return {size: counts[size] for size in KERNELS}


@pytest.mark.slow
def test_unrolled_blocks_gather_each_kernel_once(unrolled):
  assert _gathered(unrolled[1]) == {size: BLOCKS * times for size, times in KERNELS.items()}


@pytest.mark.slow
def test_a_loop_gathers_each_kernel_for_both_passes():
  loop = _step(_run(jax.devices()[:4], FSDP, unroll=False))
  assert _gathered(loop) == {size: 2 * times for size, times in KERNELS.items()}


@pytest.mark.slow
def test_kernels_that_tensor_splits_are_not_gathered_whole():
  mesh = c.MeshConfig(data=1, fsdp=2, tensor=2, min_shard_size=1024)
  assert not any(_gathered(_step(_run(jax.devices()[:4], mesh, unroll=True))).values())


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


@pytest.mark.slow
@pytest.mark.parametrize('unroll', [False, True])
def test_a_tpu_attends_to_256_of_257_tokens_apart_from_the_last(unroll):
  """256 patches and a class token: 257 x 257 weights would be padded to 384."""
  pytest.importorskip('libtpu')
  devices = topology.describe('v5e:2x2').devices
  run = _run(devices, FSDP, image_size=(64, 64), unroll=unroll, depth=2, dtype='bfloat16')
  program = _step(run).as_text()
  assert [f',{tokens},{tokens}]' in program for tokens in (257, 256)] == [False, True]


@pytest.mark.slow
def test_gathered_kernels_learn_the_same_as_whole_ones(unrolled):
  """Three steps on four devices, of which each has a quarter of a kernel or all of it."""
  learned = []
  whole = _run(jax.devices()[:4], c.MeshConfig(fsdp=1), unroll=True)
  for program, step in (unrolled, (whole.program, _step(whole))):
    state = program.init(np.uint32(0))
    for seed in range(3):
      state, _ = step(state, run_steps.batch(program, seed, 5), {})
    learned.append(jax.device_get(state.params))
  jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), *learned)
