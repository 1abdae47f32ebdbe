"""The devices of a topology by its name, those of real TPU slices too, and sentences for wrong names."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest
from processes import HUNG

from vit_jax.foundation.errors import UserError
from vit_jax.plan import topology

# Name -> devices, kind, chips along x and y, slices, as in Google Cloud's documentation. Names of v2, v3, v4, v5p
# and v7x count cores. A core is a device on v2, v3 and v7x; on v4 and v5p two cores are one.
TPUS = {
  'v3-8': (8, 'TPU v3', (2, 2), 1),
  'v3:16x16': (512, 'TPU v3', (16, 16), 1),
  'v2-32': (32, 'TPU v2', (4, 4), 1),
  'v4-16': (8, 'TPU v4', (2, 2), 1),
  'v5p-8': (4, 'TPU v5', (2, 2), 1),
  'v5e:4x4*2': (32, 'TPU v5 lite', (4, 4), 2),
  'v5litepod-16': (16, 'TPU v5 lite', (4, 4), 1),
  'v6e-1': (1, 'TPU v6 lite', (1, 1), 1),
  'tpu7x-128': (128, 'TPU7x', (4, 4), 1),
  'v7x:2x2x1': (8, 'TPU7x', (2, 2), 1),
}


@pytest.mark.parametrize('name', TPUS)
def test_tpu_slice_has_the_documented_devices_and_shape(name):
  pytest.importorskip('libtpu')
  described = topology.describe(name)
  devices, kind, extent, slices = TPUS[name]
  assert described.name == name and described.kind == kind
  assert len(described.devices) == devices
  assert tuple(max(d.coords[axis] for d in described.devices) + 1 for axis in (0, 1)) == extent
  assert {getattr(d, 'slice_index', 0) or 0 for d in described.devices} == set(range(slices))


def test_local_is_the_devices_of_this_host_which_are_planned_for_by_default_if_accelerators(monkeypatch):
  here = topology.describe('local')
  assert here.devices == tuple(jax.devices()) and here.kind == 'cpu'
  with pytest.raises(UserError, match=r'--topology is missing, .* such as --topology=v3-128'):
    topology.describe(None)
  devices = [SimpleNamespace(platform='gpu', device_kind='NVIDIA H200')]
  monkeypatch.setattr(jax, 'devices', lambda: devices)
  here = topology.describe(None)
  assert here.name == 'local' and here.kind == 'NVIDIA H200' and here.devices == tuple(devices)


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('v9-8', "is not a topology; write 'v3:16x16'"),
    ('v3:16', 'is not a topology'),
    ('v3:4x4*0', 'is not a topology'),
    ('cpu:0', 'is not a topology'),
    ('v3-1', 'v3 comes in the sizes 2, 8, 16, 32'),
    ('v5e-12', 'v5e comes in the sizes 1, 4, 8, 16'),
    ('v5e:3x5', 'cannot be described: .*3x5'),
  ],
)
def test_wrong_name_is_an_error_with_the_remedy(name, said):
  if name == 'v5e:3x5':
    pytest.importorskip('libtpu')
  with pytest.raises(UserError, match=said) as error:
    topology.describe(name)
  assert f'--topology={name}' in str(error.value)


def _python(script: str, **environment: str) -> subprocess.CompletedProcess:
  """Runs a script in a process that does not inherit the platform of the tests."""
  own = {name: value for name, value in os.environ.items() if not name.startswith(('JAX_', 'XLA_', 'TPU_'))}
  own |= environment
  return subprocess.run([sys.executable, '-c', script], env=own, capture_output=True, text=True, timeout=HUNG)


@pytest.mark.slow
def test_missing_compiler_is_an_error_that_names_the_extra():
  script = """
import sys
sys.modules['libtpu'] = None  # as where it is not installed
from vit_jax.foundation.errors import UserError
from vit_jax.plan import topology
try:
  topology.describe('v3-8')
except UserError as error:
  print(error)
"""
  result = _python(script)
  assert result.stderr == '' and result.stdout.count('\n') == 1
  assert (
    "--topology=v3-8 needs the TPU compiler, which is not installed; install the extra 'tpu'" in result.stdout
  )


@pytest.mark.slow
def test_run_starts_silently_where_the_compiler_is_installed_but_no_tpu():
  """Without JAX_PLATFORMS=cpu, nothing looks for a TPU or complains that none is here."""
  pytest.importorskip('libtpu')
  if any(map(os.path.exists, ('/dev/accel0', '/dev/vfio/0', '/dev/nvidiactl'))):
    pytest.skip('an accelerator is here')
  script = """
from vit_jax.parallel import distributed
distributed.initialize()
import jax
print(jax.devices()[0].platform)
"""
  result = _python(script)
  assert (result.stdout, result.stderr) == ('cpu\n', '')
