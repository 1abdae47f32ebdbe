import types

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from vit_jax.foundation.errors import UserError
from vit_jax.parallel import mesh as meshes
from vit_jax.parallel.mesh import MeshConfig
from vit_jax.plan import topology


def test_free_axis_takes_the_devices_that_are_left_of_all_or_of_those_that_are_given():
  mesh = meshes.make_mesh(MeshConfig(data=-1, fsdp=2, tensor=2))
  assert dict(mesh.shape) == {'replica': 1, 'data': 2, 'fsdp': 2, 'tensor': 2}
  assert tuple(mesh.axis_names) == meshes.AXES
  assert set(mesh.axis_types) == {AxisType.Auto}
  assert {device.id for device in mesh.devices.flat} == set(range(8))
  four = meshes.make_mesh(MeshConfig(data=1, fsdp=-1), jax.devices()[:4])
  assert four.shape['fsdp'] == 4 and four.size == 4


@pytest.mark.parametrize(
  'wanted, words',
  [
    (MeshConfig(data=16), ['data 16', '16 devices', '8']),
    (MeshConfig(data=-1, fsdp=4, tensor=4), ['fsdp 4', 'tensor 4', '8 devices', 'divisor of 8']),
  ],
)
def test_mesh_that_does_not_fit_is_a_user_error(wanted, words):
  with pytest.raises(UserError) as error:
    meshes.make_mesh(wanted)
  assert all(word in str(error.value) for word in words)
  assert '\n' not in str(error.value)


def _gpus(hosts: int, each: int):
  """Devices of several hosts with GPUs as JAX describes them: each host is a slice."""
  return [
    types.SimpleNamespace(id=i, platform='gpu', device_kind='NVIDIA H100', slice_index=i // each)
    for i in range(hosts * each)
  ]


@pytest.fixture
def slices_of(monkeypatch):
  """(mesh's config, devices) -> the slice of each device of that mesh."""
  monkeypatch.setattr(meshes, 'Mesh', lambda array, *_, **__: array)  # which accepts real devices only
  number = np.vectorize(lambda device: device.slice_index)
  return lambda mesh, devices: number(meshes.make_mesh(mesh, devices))


@pytest.mark.parametrize(
  'mesh, across',
  [
    (MeshConfig(replica=2, data=-1, fsdp=2), 'replica'),
    (MeshConfig(replica=2, data=1, fsdp=2, tensor=2), 'replica'),
    (MeshConfig(replica=4), 'replica'),  # two of its four parts lie within a slice
    (MeshConfig(), 'data'),
    (MeshConfig(data=2, fsdp=-1), 'data'),
    (MeshConfig(data=1, fsdp=-1), 'fsdp'),
    (MeshConfig(data=1, fsdp=2, tensor=-1), 'fsdp'),
  ],
)
def test_axis_that_runs_across_hosts_with_gpus(mesh, across, slices_of):
  slices = slices_of(mesh, _gpus(2, 4))
  assert slices.size == 8
  for index, axis in enumerate(meshes.AXES):
    if axis == across:
      assert [set(half.flat) for half in np.split(slices, 2, axis=index)] == [{0}, {1}]
    else:
      assert (slices == slices.take([0], axis=index)).all()


def test_replica_and_data_share_the_slices_and_tensor_never_runs_across_them(slices_of):
  said = r'tensor across the 2 slices.* make replica x data x fsdp a multiple of 2'
  with pytest.raises(UserError, match=said):
    slices_of(MeshConfig(data=1, tensor=8), _gpus(2, 4))
  slices = slices_of(MeshConfig(replica=2, data=4, tensor=2), _gpus(4, 4))
  assert [set(part.flat) for part in slices[:, ::2, 0, 0]] == [{0, 1}, {2, 3}]
  assert [set(part.flat) for part in slices.reshape(4, 4)] == [{0}, {1}, {2}, {3}]


def test_meshes_of_described_tpus():
  """Two slices, and an axis that needs half an axis of the network, as the TPU compiler describes them."""
  pytest.importorskip('libtpu')
  two = topology.describe('v5e:2x2*2').devices
  for axes, name, size in ((MeshConfig(replica=2, data=1, fsdp=4), 'replica', 2), (MeshConfig(), 'data', 8)):
    mesh = meshes.make_mesh(axes, two)
    rows = jax.ShapeDtypeStruct((8, 1024), np.float32, sharding=meshes.batch_sharding(mesh))
    jax.jit(lambda x: x.sum(0), out_shardings=meshes.replicated(mesh)).lower(rows).compile()
    assert mesh.shape[name] == size
    assert [device.slice_index for device in mesh.devices.flat] == [0, 0, 0, 0, 1, 1, 1, 1]
  with pytest.raises(UserError, match='put fsdp or tensor across the 2 slices'):
    meshes.make_mesh(MeshConfig(data=1, fsdp=-1), two)
  cube = topology.describe('v5p:4x4x4').devices
  assert meshes.make_mesh(MeshConfig(data=8, fsdp=8), cube).devices.shape == (1, 8, 8, 1)


def test_batch_is_split_over_three_axes_and_copied_along_tensor():
  mesh = meshes.make_mesh(MeshConfig(replica=2, data=1, fsdp=2, tensor=2))
  assert meshes.batch_shards(mesh) == 4
  batch = jax.device_put(np.arange(8 * 3).reshape(8, 3), meshes.batch_sharding(mesh))
  rows = sorted(shard.index[0].start for shard in batch.addressable_shards)
  assert rows == [0, 0, 2, 2, 4, 4, 6, 6]
  assert {shard.data.shape for shard in batch.addressable_shards} == {(2, 3)}
  copies = jax.device_put(np.ones(3), meshes.replicated(mesh))
  assert {shard.data.shape for shard in copies.addressable_shards} == {(3,)}


def test_batch_that_does_not_divide_is_a_user_error():
  mesh = meshes.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
  meshes.check_batch_size(mesh, 12)
  with pytest.raises(UserError, match=r'config\.batch_size .* 10,.* 4 parts .*data 2 x fsdp 2'):
    meshes.check_batch_size(mesh, 10)
  with pytest.raises(UserError, match=r'batches of 10, .* the 4 parts of config\.mesh; change'):
    meshes.check_batch_divides(10, 4, 'config.batch_size')


@pytest.mark.parametrize('sizes', [{'data': 0}, {'fsdp': -2}, {'replica': -1, 'data': -1}])
def test_config_of_an_impossible_mesh_is_a_user_error(sizes):
  MeshConfig().check('config.mesh')
  with pytest.raises(UserError, match=r"config\.mesh is {'replica': .*at most one may be -1"):
    MeshConfig(**sizes).check('config.mesh')
