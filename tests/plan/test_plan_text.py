"""Plans as text, from plans made by hand."""

import dataclasses
import re

from vit_jax.plan import text
from vit_jax.plan.planner import GIB, Memory, Plan, Speed, ranking_key

SPEED = Speed(
  **{'step_seconds': 0.5, 'compute_seconds': 0.4, 'collective_seconds': 0.1, 'images_per_second': 8192},
  **{'utilisation': 0.526, 'hours': 138.9, 'device_days': 740.7, 'unknown_kernels': 0},
)
PLAN = Plan(
  model='H/14',
  topology={'name': 'v3-128', 'kind': 'TPU v3', 'devices': 128},
  mesh={'replica': 1, 'data': 16, 'fsdp': 8, 'tensor': 1},
  settings={
    **{'batch_size': 4096, 'images_per_device': 32.0, 'accumulation': 1, 'image_size': [224, 196]},
    **{'dtype': 'bfloat16', 'remat': 'none', 'unroll': False},
  },
  steps=1_000_000,
  parameters=632_045_800,
  memory=Memory(2 * GIB, 4 * GIB, 0, 5 * 2**20, 6 * GIB, 12 * GIB, 15 * GIB),
  collectives={'all-gather': {'count': 387, 'bytes': 2.5 * GIB, 'seconds': 0.016}},
  model_flops=4.112e15,
  compiler_flops=1.044e12,
  speed=SPEED,
  compile_seconds=83.4,
)


def _rows(plan: Plan) -> dict[str, str]:
  """Name -> value of the table's rows; those of 'bytes per device', further in, have '  ' before their names."""
  lines = [line.removeprefix('  ') for line in text.plan_text(plan).splitlines()[1:]]
  rows = [re.fullmatch(r'((?:  )?\S.*?)(?:  +(.*))?', line) for line in lines]
  found = {row[1]: row[2] or '' for row in rows if row}
  assert len(found) == len(lines)  # no name twice
  return found


def test_table_of_a_plan_that_fits_has_memory_traffic_and_times():
  printed = text.plan_text(PLAN)
  assert printed.startswith('H/14 on v3-128\n')
  assert printed.endswith("the compiler's estimate for a machine that is not here; nothing was measured.")
  rows = _rows(PLAN)
  assert rows['devices'] == '128 × TPU v3 (v3-128)'
  assert rows['mesh'] == 'data 16 × fsdp 8'
  assert (rows['batch'], rows['  batch']) == ('4,096 images, 32 a device', '5.00 MiB')
  assert rows['settings'] == 'accumulation 1, dtype bfloat16, remat none, 224 × 196 px'
  assert (rows['parameters'], rows['  parameters']) == ('632,045,800', '2.00 GiB')
  assert rows['bytes per device'] == '' and rows['  optimizer state'] == '4.00 GiB'
  assert rows['  together'] == '12.00 GiB of 15.00 GiB: fits, 3.00 GiB to spare'
  assert rows['all-gather'] == '387 a step, 2.50 GiB a device, 16.0 ms'
  assert rows['predicted step'] == '500.0 ms: 400.0 ms computing, 100.0 ms waiting for collectives'
  assert rows['predicted speed'] == '8,192 images/s, 52.6% of peak'
  assert rows['predicted run'] == '1,000,000 steps: 138.9 h, 741 core-days'
  assert '  EMA of the parameters' not in rows and 'not estimated' not in rows


def test_table_of_a_plan_that_does_not_fit_says_by_how_much():
  memory = dataclasses.replace(PLAN.memory, temporaries=None, total=20 * GIB)
  rows = _rows(dataclasses.replace(PLAN, memory=memory, speed=None, collectives={}))
  assert rows['  together'] == '20.00 GiB of 15.00 GiB: does not fit, by 5.00 GiB'
  assert 'predicted step' not in rows and '  activations, gradients, temporaries' not in rows
  rows = _rows(dataclasses.replace(PLAN, speed=None, collectives={}))
  assert rows['predicted step'].startswith('not known') and 'predicted run' not in rows


def test_table_has_ema_and_custom_kernels_where_there_are_some():
  memory = dataclasses.replace(PLAN.memory, ema=2 * GIB, available=None)
  speed = dataclasses.replace(SPEED, unknown_kernels=48)
  one = {'replica': 1, 'data': 1, 'fsdp': 1, 'tensor': 1}
  topology = PLAN.topology | {'kind': 'TPU v5 lite'}
  rows = _rows(dataclasses.replace(PLAN, memory=memory, speed=speed, mesh=one, topology=topology))
  assert rows['  EMA of the parameters'] == '2.00 GiB' and rows['mesh'] == 'one device'
  assert rows['  together'] == '12.00 GiB of ?: the memory of this device is not known'
  assert rows['not estimated'].startswith('48 custom kernels a step')
  assert rows['predicted run'].endswith('741 chip-days')


def test_settings_name_flags_that_are_on_and_any_option_of_the_model():
  settings = PLAN.settings | {'unroll': True, 'window': 7}
  expected = 'accumulation 1, dtype bfloat16, remat none, unroll, window 7, 224 × 196 px'
  assert text.settings_text(dataclasses.replace(PLAN, settings=settings)) == expected


def test_ranking_is_by_fit_then_time_then_memory():
  slow = dataclasses.replace(PLAN, speed=dataclasses.replace(SPEED, step_seconds=0.75))
  larger, too_large, much_too_large = (
    dataclasses.replace(PLAN, speed=None, memory=dataclasses.replace(PLAN.memory, total=gib * GIB))
    for gib in (13, 16, 20)
  )
  header, *lines = text.ranking_text([much_too_large, slow, too_large, PLAN]).splitlines()
  assert header.split() == ['step', 'of', 'peak', 'run', 'memory', 'mesh', 'settings']
  assert [line.split('  ')[0] for line in lines] == ['500.0 ms', '750.0 ms', '-', '-']
  assert '741 core-days' in lines[0] and '12.00 GiB of 15.00 GiB' in lines[0]
  assert '16.00 GiB of 15.00 GiB' in lines[2] and 'does not fit' in lines[3] and '20.00 GiB' in lines[3]
  # Without times, the smaller one is first.
  smaller = dataclasses.replace(PLAN, speed=None)
  assert sorted([larger, smaller], key=ranking_key) == [smaller, larger]
  assert text.one_line(PLAN).split() == lines[0].split()
