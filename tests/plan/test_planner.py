"""A plan for the eight CPU devices of the tests, against figures by hand."""

import dataclasses
import json

import jax
import pytest

from vit_jax import config as c
from vit_jax.plan.planner import NotCompiled, Plan, make_plan
from vit_jax.plan.topology import Topology
from vit_jax.training.run import Dataset

D, M, L, H, N, K = 64, 128, 2, 4, 17, 10  # width, hidden units, blocks, heads, tokens, classes
IMAGES = 16
# Elements of arrays of at least 1,024, which are split: positions and the blocks' kernels; and of smaller
# ones, which are copied: patches, class token, head, biases, norms.
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


def planned(config: c.Config = CONFIG) -> Plan:
  return make_plan(config, Topology('cpu:8', tuple(jax.devices())), Dataset(1000, num_classes=K))


@pytest.fixture(scope='module')
def plan() -> Plan:
  return planned()


@pytest.mark.slow
def test_plan_names_topology_mesh_settings_and_sizes(plan):
  assert plan.topology == {'name': 'cpu:8', 'kind': 'cpu', 'devices': 8}
  assert plan.mesh == {'replica': 1, 'data': 1, 'fsdp': 8, 'tensor': 1}
  assert plan.settings['images_per_device'] == 2 and plan.settings['image_size'] == [8, 8]
  assert plan.settings['dtype'] == 'float32' and plan.settings['remat'] == 'none'
  assert plan.steps == 188  # 187.5
  assert plan.parameters == SPLIT + COPIED


def test_memory_is_that_of_split_and_copied_arrays(plan):
  elements = SPLIT // 8 + COPIED
  memory = plan.memory
  assert memory.params == memory.ema == 4 * elements
  assert memory.opt_state == (2 + 4) * elements + 4  # a moment in bfloat16, one in float32, Adam's counter
  assert memory.batch == IMAGES // 8 * (8 * 8 + 4)
  # With two counters, of steps and skipped steps. Beyond the arguments there are only metrics and addresses.
  arguments = memory.params + memory.ema + memory.opt_state + memory.batch + 8
  assert 0 <= memory.total - memory.temporaries - arguments < 2048
  # For the backward pass, at least the input of each block is kept.
  assert memory.temporaries > IMAGES // 8 * N * D * L * 4


def test_model_flops_are_three_times_the_forward_pass(plan):
  blocks = L * (N * (4 * D * D + 2 * D * M) + 2 * N * N * D)
  forward = 2 * (16 * 2 * 2 * D + blocks + D * K)
  assert plan.model_flops == 3 * forward * IMAGES
  assert plan.compiler_flops > 0


def test_cpu_has_no_memory_limit_and_no_estimate(plan):
  assert plan.memory.available is None and plan.memory.fits
  assert plan.speed is None and plan.collectives == {}
  content = json.loads(json.dumps(plan.as_json()))
  assert content['fits'] is True and content['memory'] == dataclasses.asdict(plan.memory)


@pytest.mark.slow
@pytest.mark.parametrize(
  'model',
  [
    c.MixerConfig(variant='custom', patch=4, width=16, tokens_mlp_dim=8, mlp_dim=16, depth=1),
    c.ResNetConfig(variant='custom', blocks=(1,), width=32),
  ],
)
def test_settings_are_those_that_decide_speed_and_memory(model):
  config = c.Config(batch_size=8, model=model, data=c.DataConfig(image_size=(32, 32)))
  run_settings = {'batch_size', 'images_per_device', 'accumulation', 'image_size'}
  assert planned(config).settings.keys() - run_settings == {'dtype', 'remat', 'unroll'}


@pytest.mark.parametrize(
  ('error', 'expected'),
  [
    (jax.errors.JaxRuntimeError('INTERNAL: no such layout\nand a long trace'), NotCompiled),
    (TypeError('of ours'), TypeError),
  ],
)
def test_only_errors_of_the_compiler_are_its_refusal(monkeypatch, error, expected):
  def refuse(self, *arguments, **options):
    raise error

  monkeypatch.setattr(jax.stages.Lowered, 'compile', refuse)
  with pytest.raises(expected) as raised:
    planned()
  said = '(it says: INTERNAL: no such layout).' if expected is NotCompiled else 'of ours'
  assert str(raised.value).endswith(said)
