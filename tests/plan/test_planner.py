"""A plan's sheet on the eight CPU devices of the tests, against figures by hand."""

import dataclasses
import json

import jax
import pytest

from vit_jax import config as c
from vit_jax.plan.planner import Memory, Size, Speed, make_sheet, rank
from vit_jax.plan.topology import Topology

D, M, L, H, N, K = 64, 128, 2, 4, 17, 10  # width, hidden units, blocks, heads, tokens, classes
IMAGES = 16
# Elements, of arrays of at least 1,024: positions, the blocks' kernels; and of smaller ones: patches, class
# token, head, biases, norms.
SPLIT = N * D + L * (4 * D * D + 2 * D * M)
COPIED = 2 * 2 * D + D + D * K + (D + L * (4 * D + M + D) + K) + (4 * L + 2) * D
CONFIG = c.Config(
  total='3 epochs',
  batch_size=IMAGES,
  model=c.ViTConfig(variant='custom', patch=2, width=D, mlp_dim=M, depth=L, heads=H),
  data=c.DataConfig(image_size=(8, 8), channels=1),
  ema=0.9,
  optimizer=c.OptimizerConfig(momentum_dtype='bfloat16'),
  mesh=c.MeshConfig(data=1, fsdp=8, min_shard_size=1024),
)


@pytest.fixture(scope='module')
def sheet():
  return make_sheet(CONFIG, Topology('cpu:8', tuple(jax.devices())), Size(examples=1000, classes=K))


def test_what_it_is_of(sheet):
  assert sheet.topology == {'name': 'cpu:8', 'kind': 'cpu', 'devices': 8}
  assert sheet.mesh == {'replica': 1, 'data': 1, 'fsdp': 8, 'tensor': 1}
  assert sheet.settings['images_per_device'] == 2 and sheet.settings['image_size'] == [8, 8]
  assert sheet.steps == 188  # 187.5
  assert sheet.parameters == SPLIT + COPIED


def test_bytes_of_a_device(sheet):
  elements = SPLIT // 8 + COPIED
  memory = sheet.memory
  assert memory.params == memory.average == 4 * elements
  assert memory.opt_state == (2 + 4) * elements + 4  # a moment in bfloat16, one in float32, Adam's counter
  assert memory.batch == IMAGES // 8 * (8 * 8 + 4)
  # The step's and the skipped steps' counters too; what is new of what it gives are metrics and addresses.
  arguments = memory.params + memory.average + memory.opt_state + memory.batch + 8
  assert 0 <= memory.total - memory.temporaries - arguments < 2048
  # Of each block, what is kept for the backward pass holds at least its input.
  assert memory.temporaries > IMAGES // 8 * N * D * L * 4


def test_flops(sheet):
  blocks = L * (N * (4 * D * D + 2 * D * M) + 2 * N * N * D)
  forward = 2 * (16 * 2 * 2 * D + blocks + D * K)
  assert sheet.model_flops == 3 * forward * IMAGES
  assert sheet.compiler_flops > 0


def test_a_cpu_has_no_limit_and_no_estimate(sheet):
  assert sheet.memory.available is None and sheet.memory.fits
  assert sheet.speed is None and sheet.collectives == {}


def test_json(sheet):
  content = json.loads(json.dumps(sheet.as_json()))
  assert content['fits'] is True and content['memory'] == dataclasses.asdict(sheet.memory)
  assert content['mesh']['fsdp'] == 8 and content['speed'] is None


def _sheet(sheet, total: int, available: int | None, seconds: float | None):
  memory = Memory(1, 2, 0, 1, 0, total, available)
  speed = None if seconds is None else Speed(seconds, seconds, 0, 1, 0.5, 1, 1, 0)
  return dataclasses.replace(sheet, memory=memory, speed=speed)


def test_rank(sheet):
  fast, slow = _sheet(sheet, 9, 10, 1.0), _sheet(sheet, 5, 10, 2.0)
  lacks_little, lacks_much = _sheet(sheet, 11, 10, None), _sheet(sheet, 20, 10, None)
  assert sorted([lacks_much, slow, lacks_little, fast], key=rank) == [fast, slow, lacks_little, lacks_much]
  # Where the compiler estimates no times, the smaller one is first.
  small, large = _sheet(sheet, 5, None, None), _sheet(sheet, 9, None, None)
  assert sorted([large, small], key=rank) == [small, large]
