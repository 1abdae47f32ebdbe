import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from vit_jax import config
from vit_jax.errors import UserError
from vit_jax.parallel import mesh as meshes


def test_the_free_axis_takes_the_devices_that_are_left():
  mesh = meshes.make_mesh(config.Mesh(data=-1, fsdp=2, tensor=2))
  assert dict(mesh.shape) == {'replica': 1, 'data': 2, 'fsdp': 2, 'tensor': 2}
  assert tuple(mesh.axis_names) == meshes.AXES
  assert set(mesh.axis_types) == {AxisType.Auto}
  assert {device.id for device in mesh.devices.flat} == set(range(8))


def test_some_devices():
  mesh = meshes.make_mesh(config.Mesh(data=1, fsdp=-1), jax.devices()[:4])
  assert mesh.shape['fsdp'] == 4 and mesh.size == 4


@pytest.mark.parametrize(
  'wanted, words',
  [
    (config.Mesh(data=3), ['data 3', '3 devices', '8']),
    (config.Mesh(data=16), ['data 16', '16 devices', '8']),
    (config.Mesh(data=-1, tensor=3), ['tensor 3', '8 devices', 'divisor of 8']),
    (config.Mesh(data=-1, fsdp=4, tensor=4), ['fsdp 4', 'tensor 4', '16']),
  ],
)
def test_a_mesh_that_does_not_fit_is_one_sentence(wanted, words):
  with pytest.raises(UserError) as error:
    meshes.make_mesh(wanted)
  assert all(word in str(error.value) for word in words)
  assert '\n' not in str(error.value)


def test_a_batch_is_split_over_three_axes_and_copied_along_tensor():
  mesh = meshes.make_mesh(config.Mesh(replica=2, data=1, fsdp=2, tensor=2))
  assert meshes.batch_shards(mesh) == 4
  batch = jax.device_put(np.arange(8 * 3).reshape(8, 3), meshes.batch_sharding(mesh))
  rows = sorted(shard.index[0].start for shard in batch.addressable_shards)
  assert rows == [0, 0, 2, 2, 4, 4, 6, 6]
  assert {shard.data.shape for shard in batch.addressable_shards} == {(2, 3)}
  copies = jax.device_put(np.ones(3), meshes.replicated(mesh))
  assert {shard.data.shape for shard in copies.addressable_shards} == {(3,)}


def test_a_batch_that_does_not_divide():
  mesh = meshes.make_mesh(config.Mesh(data=2, fsdp=2, tensor=2))
  meshes.check_batch_size(mesh, 12)
  with pytest.raises(UserError, match=r'config\.batch_size .* 10,.* 4 parts .*data 2 x fsdp 2'):
    meshes.check_batch_size(mesh, 10)
  with pytest.raises(UserError, match=r'evaluators\.val\.batch_size'):
    meshes.check_batch_size(mesh, 10, 'config.evaluators.val.batch_size')
