"""What a config leaves open is chosen by devices, model and batch; what it says is kept."""

import dataclasses
import re
import types

import config_files
import jax
import pytest
import tiny

from vit_jax import config as c
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import MODELS, Architecture
from vit_jax.parallel import hardware
from vit_jax.training import auto
from vit_jax.training.run import Dataset, Run


def _devices(count, kind):
  platform = {'TPU': 'tpu', 'NVI': 'gpu', 'cpu': 'cpu'}[kind[:3]]
  return [types.SimpleNamespace(platform=platform, device_kind=kind, slice_index=0)] * count


def _choose(config, devices, steps=100_000):
  architecture = Architecture(config.model, config.data.image_size, 3, 1000)
  chosen, text = auto.choose(config, architecture, steps, devices)
  return (chosen.mesh.fsdp, chosen.model.unroll, chosen.model.remat), text


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, count, kind, expected, parts',
  [
    ('vit_l16', 128, 'TPU v3', (16, True, 'none'), 1),
    ('vit_h14', 64, 'TPU v5 lite', (16, True, 'none'), 2),
    ('vit_l16', 8, 'TPU v4', (8, True, 'none'), None),  # 16 do not divide 8
    ('vit_h14', 32, 'TPU v3', (16, True, 'none'), 4),
    ('vit_h14', 8, 'TPU v3', (8, True, 'none'), 16),
    ('vit_ti16', 32, 'TPU v3', (1, True, 'none'), None),
    ('vit_h14', 4, 'TPU v5', (1, True, 'none'), None),  # 8 do not divide 4
    ('vit_h14', 1, 'TPU v5 lite', (1, False, 'block'), None),
    ('vit_l16', 1, 'TPU v5 lite', (1, True, 'none'), 128),
    ('vit_l16', 1, 'cpu', (1, False, 'none'), 1),
  ],
)
def test_recipes_get_what_their_best_plans_have_in_as_few_parts_as_fit(name, count, kind, expected, parts):
  config = config_files.load(name, 'imagenet21k' if name == 'vit_ti16' else 'jft')
  assert (config.mesh.fsdp, config.model.unroll, config.model.remat) == (None, None, None)
  architecture = Architecture(config.model, config.data.image_size, 3, 1000)
  chosen, text = auto.choose(config, architecture, 100_000, _devices(count, kind))
  assert (chosen.mesh.fsdp, chosen.model.unroll, chosen.model.remat) == expected
  fsdp, unroll, remat = expected
  if kind == 'cpu':
    assert not text
  else:
    memory = hardware.of(kind).memory / 2**30
    start = f'fsdp {fsdp}{", blocks unrolled" if unroll else ""}, remat {remat}'
    assert re.search(rf' {start}(, accumulation \d+)?; about ', text)
    assert text.endswith(f' of {memory:.1f} GiB')
  assert parts in (None, chosen.accumulation) and (f'accumulation {parts}' in text) == ((parts or 1) > 1)


@pytest.mark.parametrize(
  ('name', 'steps', 'unrolled'),
  [('vit_ti16', 2_000, True), ('vit_ti16', 1_999, False), ('vit_s16', 100_000, False)],
)
def test_on_a_cpu_small_models_are_unrolled_in_runs_of_minutes(name, steps, unrolled):
  config = config_files.load(name, 'imagenet2012')
  chosen, text = _choose(config, _devices(1, 'cpu'), steps)
  assert chosen == (1, unrolled, 'none')
  assert text == ('Chosen for these devices: blocks unrolled' if unrolled else '')
  as_asked = dataclasses.replace(config, model=dataclasses.replace(config.model, unroll=False))
  assert _choose(as_asked, _devices(1, 'cpu'), steps) == ((1, False, 'none'), '')


@pytest.mark.parametrize('variant', ['R50x1', 'R50+B/16', 'B0'])
def test_on_a_cpu_feature_maps_are_unrolled_in_the_shortest_runs(variant):
  name = next(name for name in MODELS.names() if variant in MODELS[name].variants)
  config = config_files.load('vit_b16', 'imagenet2012')
  config = dataclasses.replace(config, model=MODELS[name](variant=variant))
  assert _choose(config, _devices(1, 'cpu'), steps=1)[0] == (1, True, 'none')


@pytest.mark.slow
def test_parts_that_keep_a_tpu_busy_come_before_computing_again():
  config = config_files.load('vit_h14', 'jft')
  assert _choose(config, _devices(64, 'TPU v5 lite'))[0] == (16, True, 'none')
  whole = dataclasses.replace(config, accumulation=1)
  assert _choose(whole, _devices(64, 'TPU v5 lite'))[0] == (16, True, 'block')
  few = dataclasses.replace(
    config, data=dataclasses.replace(config.data, image_size=(518, 518)), batch_size=512
  )
  assert _choose(few, _devices(64, 'TPU v3'))[0] == (16, True, 'dots')


@pytest.mark.nightly
def test_a_model_with_running_statistics_keeps_its_batch_whole():
  config = c.Config(
    batch_size=8192, model=c.EfficientNetConfig(variant='B0'), data=c.DataConfig(image_size=(600, 600))
  )
  chosen, _ = auto.choose(
    config, Architecture(config.model, config.data.image_size, 3, 1000), 100_000, _devices(8, 'TPU v3')
  )
  assert (chosen.accumulation, chosen.model.remat) == (1, 'block')


@pytest.mark.nightly
def test_feature_maps_of_few_images_a_tpu_core_take_the_memory_of_eight():
  config = c.Config(
    batch_size=2048,
    model=c.EfficientNetConfig(variant='L2', dtype='bfloat16'),
    data=c.DataConfig(image_size=(475, 475)),
  )
  # The compiler takes 24.6 GiB for 'none' and, with fsdp 32, 4.6 for 'block'; a TPU v3 core has 15.5.
  assert _choose(config, _devices(2048, 'TPU v3'))[0][2] == 'block'
  assert _choose(config, _devices(2048, 'NVIDIA A100-SXM4-40GB'))[0][2] == 'none'


@pytest.mark.slow
def test_what_the_config_says_is_kept():
  config = c.Config(
    model=tiny.options(remat='dots', unroll=False, dtype='bfloat16'), mesh=c.MeshConfig(fsdp=2)
  )
  assert _choose(config, _devices(8, 'TPU v3')) == ((2, False, 'dots'), '')
  part = dataclasses.replace(config, mesh=c.MeshConfig(), model=tiny.options(remat='block'))
  assert _choose(part, _devices(8, 'TPU v3'))[0] == (1, True, 'block')


def test_short_runs_and_gpus_have_a_loop():
  config = c.Config(model=tiny.options(), data=c.DataConfig(image_size=(12, 8)))
  assert _choose(config, _devices(8, 'TPU v3'), steps=100)[0] == (1, False, 'none')
  assert _choose(config, _devices(8, 'NVIDIA A100-SXM4-80GB'))[0] == (1, True, 'none')
  assert _choose(config, _devices(8, 'NVIDIA A100-SXM4-80GB'), steps=999)[0] == (1, False, 'none')


def test_a_single_device_has_a_loop_where_blocks_are_computed_again():
  config = config_files.load('vit_l16', 'jft')
  assert _choose(config, _devices(1, 'TPU v5 lite'))[0] == (1, True, 'none')
  few = dataclasses.replace(config, batch_size=8)
  assert _choose(few, _devices(1, 'TPU v5 lite'))[0] == (1, True, 'none')
  again = dataclasses.replace(config, model=dataclasses.replace(config.model, remat='block'))
  assert _choose(again, _devices(1, 'TPU v5 lite'))[0] == (1, False, 'block')
  kept = dataclasses.replace(config, model=dataclasses.replace(again.model, unroll=True))
  assert _choose(kept, _devices(1, 'TPU v5 lite'))[0] == (1, True, 'block')


def test_the_images_of_the_whole_batch_are_counted_whatever_its_parts():
  config = dataclasses.replace(config_files.load('vit_ti16', 'imagenet21k'), accumulation=64)
  devices, values = _devices(1, 'TPU v5 lite'), 224 * 224 * 3

  def needed(batch):
    whole = dataclasses.replace(config, batch_size=batch)
    return auto.estimated_bytes(whole, parameters=0, bytes_saved=0, values=values, devices=devices)

  assert needed(4096) - needed(2048) == 2048 * values * 5  # as bytes and in float32


def test_state_that_does_not_fit_is_split_further():
  """H/14 has 632 million parameters: 9.4 GiB with two moments and gradients, more than half of a TPU v2's memory."""
  config = config_files.load('vit_h14', 'jft')
  small = dataclasses.replace(config, batch_size=64, ema=0.999)
  assert _choose(small, _devices(64, 'TPU v2'))[0][0] == 16
  larger = dataclasses.replace(small, model=dataclasses.replace(small.model, depth=128))
  assert _choose(larger, _devices(64, 'TPU v2'))[0][0] == 32


def test_less_is_saved_the_more_is_computed_again():
  """With 'block' the input of each of two blocks, of 7 tokens and 32 numbers, and little else."""
  saved = {
    remat: auto.saved_bytes(Architecture(tiny.options(remat=remat), (12, 8), 3, 5))
    for remat in ('none', 'dots', 'block')
  }
  inputs = 2 * 7 * 32 * 4
  assert inputs < saved['block'] < saved['dots'] < saved['none']
  assert saved['block'] < inputs + 4 * (3 * 12 * 8 + 4 * 7 * 32)


@pytest.mark.parametrize('remat', ['none', 'dots', 'block'])
def test_what_is_saved_does_not_depend_on_the_host_that_plans(remat, monkeypatch):
  """A CPU computes bfloat16 in a form of its own, and plans for TPUs."""
  architecture = Architecture(tiny.options(remat=remat, dtype='bfloat16'), (12, 8), 3, 5)
  here = auto.saved_bytes(architecture)
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  assert auto.saved_bytes(architecture) == here


def test_a_run_keeps_the_config_as_asked_beside_the_chosen_one():
  config = c.Config(
    total='3 steps',
    batch_size=16,
    model=tiny.options(),
    data=c.DataConfig(source='digits', image_size=(8, 8), channels=1),
  )
  run = Run(config, Dataset(100, num_classes=10))
  assert run.asked is config
  assert (run.config.mesh.fsdp, run.config.model.unroll, run.config.model.remat) == (1, False, 'none')
  assert run.architecture.model is run.config.model


@pytest.mark.parametrize(
  ('batch_size', 'kind'), [(1, 'TPU v5 lite'), (24, 'TPU v5 lite'), (15, 'NVIDIA H200')]
)
def test_a_batch_that_does_not_divide_over_the_devices_is_not_divided_further(batch_size, kind):
  config = c.Config(model=tiny.options(), data=c.DataConfig(image_size=(12, 8)), batch_size=batch_size)
  architecture = Architecture(config.model, config.data.image_size, 3, 10)
  assert auto.choose(config, architecture, 100, _devices(16, kind))[0].accumulation == 1


@pytest.mark.parametrize('mesh', [{'tensor': 3}, {'data': 2, 'tensor': 32}, {'data': 32}, {'replica': 3}])
def test_a_mesh_that_the_devices_do_not_make_is_refused_as_it_was_asked_for(mesh):
  config = c.Config(
    model=tiny.options(), data=c.DataConfig(image_size=(12, 8)), mesh=c.MeshConfig(**mesh), batch_size=96
  )
  with pytest.raises(UserError, match=r'^config\.mesh \(.*, fsdp 1, .*16'):
    _choose(config, _devices(16, 'TPU v5 lite'), steps=100)
