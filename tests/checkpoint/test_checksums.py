import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from processes import run

from vit_jax.checkpoint import checksums
from vit_jax.parallel.mesh import MeshConfig, make_mesh

DTYPES = ['float32', 'bfloat16', 'float16', 'int32', 'uint32', 'int8', 'uint8', 'bool']


def _reference(array: np.ndarray) -> str:
  """The definition again, with Python's integers, one element at a time."""

  def mix(h):
    h = (h ^ (h >> 16)) * 0x85EBCA6B % 2**32
    h = (h ^ (h >> 13)) * 0xC2B2AE35 % 2**32
    return h ^ (h >> 16)

  width = array.dtype.itemsize
  elements = [int.from_bytes(array.tobytes()[i : i + width], 'little') for i in range(0, array.nbytes, width)]
  sums = [
    sum(mix(bits ^ mix((i + seed) % 2**32)) for i, bits in enumerate(elements)) % 2**32
    for seed in (0x9E3779B9, 0x7F4A7C15)
  ]
  return ''.join(f'{part:08x}' for part in sums)


def _values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
  bits = np.random.default_rng(0).integers(0, 256, (*shape, 8), dtype=np.uint8)
  if dtype == 'bool':
    return bits[..., 0] > 127
  kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
  return bits.view(kind)[..., 0]  # every pattern of bits, NaN and infinities included


def _checksum(array) -> str:
  return checksums.of_arrays({'a': array})['a']['checksum']


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('shape', [(), (5,), (2, 3, 4), (0, 3)])
def test_checksum_is_that_of_the_definition(dtype, shape):
  values = _values(dtype, shape)
  found = checksums.of_arrays({'a': jnp.asarray(values)})['a']
  assert found == {'shape': list(shape), 'dtype': dtype, 'checksum': _reference(values)}


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'uint8', 'bool'])
def test_sharding_does_not_matter(dtype):
  values = _values(dtype, (8, 4, 6))
  expected = _reference(values)
  mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
  for spec in (
    P(),
    P('data'),
    P(('data', 'fsdp'), 'tensor'),
    P(None, 'fsdp', 'tensor'),
    P('tensor', None, 'data'),
  ):
    assert _checksum(jax.device_put(values, NamedSharding(mesh, spec))) == expected
  assert _checksum(jax.device_put(values, jax.devices()[3])) == expected


@settings(deadline=None, max_examples=60)
@given(position=st.integers(0, 63), bit=st.integers(0, 31), seed=st.integers(0, 5))
def test_any_flipped_bit_changes_the_checksum(position, bit, seed):
  values = np.random.default_rng(seed).standard_normal(64, dtype=np.float32)
  flipped = values.copy()
  flipped.view(np.uint32)[position] ^= np.uint32(1 << bit)
  assert _checksum(jnp.asarray(values)) != _checksum(jnp.asarray(flipped))


def test_checksum_needs_no_memory_and_moves_no_array():
  """Read off the compiled program, for an array split over eight devices."""
  mesh = make_mesh(MeshConfig(data=1, fsdp=4, tensor=2))
  x = jax.device_put(jnp.zeros((64, 512, 32)), NamedSharding(mesh, P(None, 'fsdp', 'tensor')))
  compiled = checksums._sums.lower(x, NamedSharding(mesh, P())).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < x.nbytes / 100


MANY = """
  import jax
  import jax.numpy as jnp
  from jax.sharding import NamedSharding, PartitionSpec as P
  from vit_jax.checkpoint import checksums
  from vit_jax.parallel.mesh import MeshConfig, make_mesh

  mesh = make_mesh(MeshConfig(data=1, fsdp=-1))
  array = jax.device_put(jnp.arange(2.0**20), NamedSharding(mesh, P('fsdp')))
  found = checksums.of_arrays({str(number): array for number in range(300)})
  print(len(found), 'arrays,', len({sums['checksum'] for sums in found.values()}), 'checksum')
"""


@pytest.mark.slow
def test_many_arrays_on_more_devices_than_cores_do_not_hang():
  """In a process of its own: where XLA's CPU client hangs, it ends the process after a minute."""
  (output,) = run(MANY, devices=8)
  assert output.endswith('300 arrays, 1 checksum\n')
