"""The paper's L/16, its parameters fully sharded: what the compiler made of the training step.

On eight CPU devices, and with the compiler of a TPU v3 that is not there, for a mesh in which the parameters
are split over 4 of 32 cores. XLA has no reduce-scatter for CPUs: there it sums a gradient and keeps a part.
"""

import collections
import dataclasses
import math
import re
from typing import NamedTuple

import config_files
import jax
import pytest

from vit_jax import config as c
from vit_jax.training.run import Dataset, Run

D, M, L, H, N, K = 1024, 4096, 24, 16, 197, 1000  # width, hidden units, blocks, heads, tokens, classes
KERNELS = {(D, H, D // H): 3, (H, D // H, D): 1, (D, M): 1, (M, D): 1}  # of a block: shape -> how many
# By hand, from the sizes alone: elements of the parameters of at least 2^16, which are split (patches,
# positions, the blocks' kernels, head), and of those that every device has whole.
SPLIT = 16 * 16 * 3 * D + N * D + L * (4 * D * D + 2 * D * M) + D * K
BIASES = D + L * (3 * D + D + M + D) + K  # patches; query, key, value, out, MLP; head
COPIED = BIASES + D + (4 * L + 2) * D  # class token; scale and bias of the norms


class Collective(NamedTuple):
  computation: str  # the HLO computation it is in
  kind: str  # 'all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all' or 'collective-permute'
  shapes: list[tuple[int, ...]]  # of its results, axes of size 1 left out


def _compile(mesh: c.MeshConfig, batch_size: int, dtype: str, devices=None, **options):
  """(the program, its compiled step) of L/16 on ImageNet, 224 px, as the paper trains it."""
  paper = config_files.load('vit_l16', 'imagenet2012')
  model = dataclasses.replace(paper.model, dtype=dtype, unroll=False, remat='block', **options)
  config = dataclasses.replace(paper, batch_size=batch_size, mesh=mesh, model=model)
  program = Run(config, Dataset(1_281_167, num_classes=K), devices).program
  return program, program.step.lower(program.state, program.batch).compile()


def _collectives(hlo: str) -> list[Collective]:
  found, computation = [], ''
  operation = re.compile(
    r' = (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\('
  )
  for line in hlo.splitlines():
    if header := re.match(r'(?:ENTRY )?%(\S+) \(.*\{$', line):
      computation = header[1]
    elif match := operation.search(line):
      sizes = (map(int, filter(None, text.split(','))) for text in re.findall(r'\w+\[([\d,]*)\]', match[1]))
      found.append(Collective(computation, match[2], [tuple(n for n in s if n > 1) for s in sizes]))
  return found


@pytest.fixture(scope='module')
def on_cpu():
  # Its head reads all tokens: where it reads one, the last block stands behind the loop on processors.
  return _compile(c.MeshConfig(data=1, fsdp=-1), 16, 'float32', pool='gap', class_token=True)


@pytest.fixture(scope='module')
def on_tpu():
  pytest.importorskip('libtpu')
  from jax.experimental import topologies

  devices = topologies.get_topology_desc(platform='tpu', topology_name='v3:4x4').devices
  return _compile(c.MeshConfig(data=-1, fsdp=4), 64, 'bfloat16', devices)


@pytest.mark.slow
def test_a_device_holds_its_share_of_the_state(on_cpu):
  program, compiled = on_cpu
  assert SPLIT + COPIED == 304_326_632
  # Parameters and two moments, an eighth of what is split; the counters of step, skipped steps and Adam.
  expected = 3 * 4 * (SPLIT // 8 + COPIED) + 3 * 4
  (state, _), _ = compiled.input_shardings
  held = sum(
    math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf, sharding in zip(jax.tree.leaves(program.state), jax.tree.leaves(state), strict=True)
  )
  assert held == expected
  memory = compiled.memory_analysis()
  assert memory.argument_size_in_bytes == expected + 2 * (224 * 224 * 3 + 4)  # two images, two labels
  assert memory.alias_size_in_bytes == expected  # the new state takes the place of the old one


def _check_residual_stream(hlo: str, dtype: str, images: int, all_images: int) -> None:
  """A device has its own images' tokens, in the loops too, and never another's."""
  batches = {int(b or 1) for b in re.findall(rf'\b\w+\[(?:1,|{L},)?(?:(\d+),)?{N},{D}\]', hlo)}
  assert images in batches and batches <= {1, images} and all_images > images  # 1: the positions
  assert f'{dtype}[{L},{images},{N},{D}]' in hlo  # what the forward loop leaves for the backward one


def _check_gathers(hlo: str, most: int = 1) -> None:
  """The kernels of a block are gathered in the body of each loop, one at a time, and nowhere all at once.

  Args:
    hlo: the compiled step.
    most: how often a loop's body may gather the same kernel.
  """
  gathers = [collective for collective in _collectives(hlo) if collective.kind == 'all-gather']
  assert max(math.prod(shape) for gather in gathers for shape in gather.shapes) == M * D
  assert all(sum(map(math.prod, gather.shapes)) <= M * D for gather in gathers)
  # By their elements, for processors gather a kernel of attention as a matrix.
  times: collections.Counter[int] = collections.Counter()
  for shape, each in KERNELS.items():
    times[math.prod(shape)] += each
  of_kernels = [gather for gather in gathers if math.prod(gather.shapes[0]) in times]
  bodies = set(re.findall(r' while\(.*body=%([\w.\-]+)', hlo))
  loops = {gather.computation for gather in of_kernels}
  assert len(loops) == 2 and loops <= bodies  # forward and backward
  for loop in loops:
    counts = collections.Counter(
      math.prod(gather.shapes[0]) for gather in of_kernels if gather.computation == loop
    )
    assert all(each <= counts[size] <= most * each for size, each in times.items())
  for shape in KERNELS:  # neither the parameters nor their gradients are ever whole on a device
    assert f'[{L},{",".join(map(str, shape))}]' not in hlo


@pytest.mark.slow
def test_the_residual_stream_is_split_by_batch_and_parameters_are_gathered_one_layer_at_a_time(on_cpu):
  hlo = on_cpu[1].as_text()
  _check_residual_stream(hlo, 'f32', 2, 16)
  _check_gathers(hlo, most=2)  # the rematerialised product and the gradient by its input read it apart


@pytest.mark.slow
def test_split_batch_and_gathers_by_layer_on_a_tpu(on_tpu):
  _, compiled = on_tpu
  hlo = compiled.as_text()
  _check_residual_stream(hlo, 'bf16', 2, 64)
  _check_gathers(hlo, most=2)  # libtpu 0.0.42 gathers two of a block's kernels again in the backward loop
  # Tiles of 8 x 128 elements are padded: a little more than the bytes by hand.
  expected = 3 * 4 * (SPLIT // 4 + COPIED) + 3 * 4 + 2 * (224 * 224 * 3 + 4)
  assert expected <= compiled.memory_analysis().argument_size_in_bytes < 1.01 * expected


@pytest.mark.slow
def test_gradients_are_reduced_and_scattered_on_a_tpu(on_tpu):
  """TPUs have a reduce-scatter as an all-reduce that is fused with taking a part."""
  hlo = on_tpu[1].as_text()
  fused = re.findall(r'^%all-reduce-scatter\S* \(.*-> \w+\[([\d,]+)\]', hlo, re.MULTILINE)
  parts = [tuple(n for n in map(int, text.split(',')) if n > 1) for text in fused]
  kernels = [shape for shape, times in KERNELS.items() for _ in range(times)]
  whole = [*kernels, (D, K), (16, 16, 3, D)]
  # Padded to a multiple of the tiles, a part may have a few elements more.
  sizes = zip(sorted(map(math.prod, parts)), sorted(math.prod(shape) // 4 for shape in whole), strict=True)
  assert all(quarter <= part <= 1.05 * quarter for part, quarter in sizes)
  # What is summed over all devices is a part already, or small: biases, norms, positions.
  summed = [
    math.prod(shape)
    for collective in _collectives(hlo)
    if collective.kind == 'all-reduce' and 'all-reduce-scatter' not in collective.computation
    for shape in collective.shapes
  ]
  assert max(summed) == M * D // 4
