"""The devices of a topology by its name: those of real TPU slices, and sentences for wrong names."""

import os
import subprocess
import sys

import jax
import pytest

from vit_jax.errors import UserError
from vit_jax.plan import topology

# As Google Cloud's documentation has them: name -> devices, kind, chips along x and y, slices. A device is a
# core of v3, whose names count cores; of v4 and v5p too, where two cores are one device.
TPUS = {
  'v3-8': (8, 'TPU v3', (2, 2), 1),
  'v3-512': (512, 'TPU v3', (16, 16), 1),
  'v3:16x16': (512, 'TPU v3', (16, 16), 1),
  'v2-32': (32, 'TPU v2', (4, 4), 1),
  'v4-16': (8, 'TPU v4', (2, 2), 1),
  'v5p-8': (4, 'TPU v5', (2, 2), 1),
  'v5e:4x4*2': (32, 'TPU v5 lite', (4, 4), 2),
  'v5litepod-16': (16, 'TPU v5 lite', (4, 4), 1),
  'v6e-1': (1, 'TPU v6 lite', (1, 1), 1),
}


@pytest.mark.parametrize('name', TPUS)
def test_tpus(name):
  pytest.importorskip('libtpu')
  described = topology.describe(name)
  devices, kind, extent, slices = TPUS[name]
  assert described.name == name and described.kind == kind and described.is_tpu
  assert len(described.devices) == devices
  assert tuple(max(d.coords[axis] for d in described.devices) + 1 for axis in (0, 1)) == extent
  assert {getattr(d, 'slice_index', 0) or 0 for d in described.devices} == set(range(slices))


def test_local_devices():
  here = topology.describe('local')
  assert here.devices == tuple(jax.devices()) and here.kind == 'cpu' and not here.is_tpu


@pytest.mark.parametrize(
  ('name', 'said'),
  [
    ('v3', 'is none that is known'),
    ('v9-8', "is none that is known; write 'v3:16x16'"),
    ('v3:16', 'is none that is known'),
    ('v3:4x4*0', 'is none that is known'),
    ('cpu:0', 'is none that is known'),
    ('cpu', 'is none that is known'),
    ('v3-7', 'there are sizes 2, 8, 16, 32'),
    ('v3-1', 'there are sizes 2, 8, 16, 32'),
    ('v5e-12', 'there are sizes 1, 4, 8, 16'),
  ],
)
def test_wrong_names_are_said(name, said):
  with pytest.raises(UserError, match=said) as error:
    topology.describe(name)
  assert f'--topology={name}' in str(error.value)


def test_a_shape_that_no_slice_has_is_said():
  pytest.importorskip('libtpu')
  with pytest.raises(UserError, match=r'--topology=v5e:3x5 cannot be described: .*3x5'):
    topology.describe('v5e:3x5')


def _python(script: str, **environment: str) -> subprocess.CompletedProcess:
  """A process of its own that knows nothing of the tests' platform."""
  own = {name: value for name, value in os.environ.items() if not name.startswith(('JAX_', 'XLA_', 'TPU_'))}
  own |= environment
  return subprocess.run([sys.executable, '-c', script], env=own, capture_output=True, text=True, timeout=300)


def test_without_the_compiler_the_extra_is_named():
  script = """
import sys
sys.modules['libtpu'] = None  # as where it is not installed
from vit_jax.errors import UserError
from vit_jax.plan import topology
try:
  topology.describe('v3-8')
except UserError as error:
  print(error)
"""
  result = _python(script)
  assert result.stderr == '' and result.stdout.count('\n') == 1
  assert (
    "--topology=v3-8 needs the TPU compiler, which is not installed; get the extra 'tpu'" in result.stdout
  )


def test_where_the_compiler_is_but_no_tpu_a_run_starts_in_silence():
  """Nobody says JAX_PLATFORMS=cpu; libtpu is installed, and nothing looks for a TPU or says there is none."""
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
