"""Checkpoints and real processes: killed ones, several joined ones, full and read-only disks."""

import gc
import pathlib
import shutil
import signal
import subprocess
import time

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from processes import finish, run, start
from small_disks import mounted

from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager
from vit_jax.foundation.errors import UserError
from vit_jax.parallel.mesh import MeshConfig, make_mesh

SHAPE = (16, 8)

# What the processes of these tests have in common; {0} is the directory.
COMMON = """
import sys
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager
from vit_jax.parallel import distributed
from vit_jax.parallel.mesh import MeshConfig, make_mesh

distributed.initialize()
mesh = make_mesh(MeshConfig(data=1, fsdp=-1))
shardings = {'x': NamedSharding(mesh, P('fsdp')), 'y': NamedSharding(mesh, P())}

def values(step):
  bits = np.random.default_rng(step)
  return {'x': bits.standard_normal((16, 8), np.float32), 'y': np.int32(step)}

def arrays(step):
  def put(value, sharding):
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
  return jax.tree.map(put, jax.tree.map(np.asarray, values(step)), shardings)

abstract = jax.tree.map(
  lambda v, s: jax.ShapeDtypeStruct(np.shape(v), np.asarray(v).dtype, sharding=s), values(0), shardings)

def check(items, step):
  for name, expected in values(step).items():
    array = items['params'][name]
    assert array.sharding == shardings[name]
    for shard in array.addressable_shards:
      np.testing.assert_array_equal(shard.data, np.asarray(expected)[shard.index])
"""

SAVE = (
  COMMON
  + """
with Manager(sys.argv[1], CheckpointConfig(keep=3)) as manager:
  for step in (1, 2, 3):
    assert manager.save(step, {'params': arrays(step), 'counters': {'step': step}}, {'step': step})
assert manager.all_steps() == [1, 2, 3]
"""
)

RESTORE = (
  COMMON
  + """
from jax.experimental import multihost_utils

def items_of(meta):
  multihost_utils.sync_global_devices('items_of')  # such a function may build a program of all processes
  print('asked for', meta['step'])
  return {'params': abstract}

with Manager(sys.argv[1], CheckpointConfig(keep=3)) as manager:
  step, items, meta = manager.restore_newest(items_of)
  assert meta == {'step': step}
  check(items, step)
  print('restored', step, 'by', jax.process_count())
  assert manager.save(9, {'params': items['params']}, {})
"""
)


def _values(step: int) -> dict:
  bits = np.random.default_rng(step)
  return {'x': bits.standard_normal(SHAPE, np.float32), 'y': np.int32(step)}


def _restore_here(directory: pathlib.Path) -> int:
  """The newest step, restored by this one process with eight devices, its values checked."""
  mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
  sharding = {'x': NamedSharding(mesh, P('fsdp', 'tensor')), 'y': NamedSharding(mesh, P())}
  abstract = jax.tree.map(
    lambda v, s: jax.ShapeDtypeStruct(np.shape(v), np.asarray(v).dtype, sharding=s), _values(0), sharding
  )
  with Manager(directory, CheckpointConfig()) as manager:
    step, items, _ = manager.restore_newest({'params': abstract})
  for name, expected in _values(step).items():
    np.testing.assert_array_equal(items['params'][name], expected)
  return step


@pytest.fixture(scope='module')
def saved_by_two(tmp_path_factory) -> pathlib.Path:
  """Steps 1, 2 and 3, which two processes saved."""
  directory = tmp_path_factory.mktemp('two') / 'run'
  run(SAVE, 2, arguments=(directory,))
  return directory


@pytest.mark.slow
def test_one_process_restores_what_two_saved(saved_by_two, tmp_path):
  shutil.copytree(saved_by_two, tmp_path / 'run')
  assert _restore_here(tmp_path / 'run') == 3


@pytest.mark.slow
def test_two_processes_restore_what_one_saved(tmp_path):
  with Manager(tmp_path / 'run', CheckpointConfig()) as manager:
    manager.save(4, {'params': jax.device_put(_values(4))}, {'step': 4})
  outputs = run(RESTORE, 2, arguments=(tmp_path / 'run',))
  assert all('restored 4 by 2' in output for output in outputs)


@pytest.mark.nightly
@pytest.mark.slow
def test_two_fall_back_together_from_a_damaged_step_with_the_meta_of_the_older_one(saved_by_two, tmp_path):
  shutil.copytree(saved_by_two, tmp_path / 'run')
  # Step 3: the file with the numbers is cut. Step 2: the directory is empty.
  for file in (tmp_path / 'run' / '3' / 'params' / 'd').iterdir():
    file.write_bytes(file.read_bytes()[:-9])
  shutil.rmtree(tmp_path / 'run' / '2')
  (tmp_path / 'run' / '2').mkdir()
  outputs = run(RESTORE, 2, arguments=(tmp_path / 'run',))
  for output in outputs:
    assert 'restored 1 by 2' in output
    assert output.count('is damaged') == 2 and 'asked for 3' in output and 'asked for 1' in output
  assert {path.name for path in (tmp_path / 'damaged').iterdir()} == {'2-0', '3-0'}
  assert {path.name for path in (tmp_path / 'run').iterdir()} == {'1', '9'}


@pytest.mark.slow
def test_all_fall_back_where_one_cannot_read(saved_by_two, tmp_path):
  shutil.copytree(saved_by_two, tmp_path / 'run')
  one_fails = """
import orbax.checkpoint as ocp
if jax.process_index() == 1:
  class Broken(ocp.StandardCheckpointHandler):
    def restore(self, directory, args):
      if directory.parent.name == '3':
        raise OSError('Input/output error')
      return super().restore(directory, args=args)
  ocp.StandardCheckpointHandler = Broken
"""
  outputs = run(COMMON + one_fails + RESTORE[len(COMMON) :], 2, arguments=(tmp_path / 'run',))
  assert all('restored 2 by 2' in output for output in outputs)
  assert 'another process' in outputs[0] and 'Input/output error' in outputs[1]
  assert [path.name for path in (tmp_path / 'damaged').iterdir()] == ['3-0']


@pytest.mark.nightly
@pytest.mark.slow
def test_processes_that_do_not_share_the_directory_are_told_so(tmp_path):
  _save_small(tmp_path / '0', 1)
  _save_small(tmp_path / '1', 2)
  own = (
    COMMON
    + """
from vit_jax.foundation.errors import UserError
with Manager(f'{sys.argv[1]}/{jax.process_index()}', CheckpointConfig(), read_only=True) as manager:
  try:
    manager.restore_newest({})
  except UserError as error:
    print('told:', error)
"""
  )
  outputs = run(own, 2, arguments=(tmp_path,))
  assert all('told: The processes see different checkpoints' in output for output in outputs)


# Saves for ever: files of 32 MiB, which take a while to write.
FOREVER = """
import sys
import jax
import numpy as np
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager

with Manager(sys.argv[1], CheckpointConfig(keep=2)) as manager:
  for step in range(1, 1000):
    x = np.random.default_rng(step).standard_normal((1024, 8192), np.float32)
    manager.save(step, {'params': {'x': jax.device_put(x)}}, {'step': step})
"""


@pytest.mark.slow
def test_run_killed_while_saving_restores_a_whole_step(tmp_path):
  """SIGKILL at different moments of a save; what is restored is always one step, whole."""
  directory = tmp_path / 'run'
  partial = 0
  for attempt in range(2):
    before = max(Manager(directory, CheckpointConfig(), read_only=True).all_steps(), default=0)
    (process,) = start(
      FOREVER.replace('range(1, 1000)', f'range({before + 1}, 1000)'), arguments=(directory,)
    )
    # A step of this process is complete, and the next is being written.
    while not ((directory / str(before + 1)).exists() and list(directory.glob('*.orbax-checkpoint-tmp*'))):
      assert process.poll() is None, process.stdout.read()
      time.sleep(0.002)
    time.sleep(0.03 * attempt)
    process.send_signal(signal.SIGKILL)
    finish([process])
    partial += bool(list(directory.glob('*.orbax-checkpoint-tmp*')))
    abstract = {'params': {'x': jax.ShapeDtypeStruct((1024, 8192), np.float32)}}
    with Manager(directory, CheckpointConfig()) as manager:
      assert not list(directory.glob('*.orbax-checkpoint-tmp*'))
      step, items, meta = manager.restore_newest(abstract)
    assert step > before and meta == {'step': step}
    expected = np.random.default_rng(step).standard_normal((1024, 8192), np.float32)
    np.testing.assert_array_equal(items['params']['x'], expected)
  assert partial > 0 and not (tmp_path / 'damaged').exists()


@pytest.fixture(autouse=True)
def collected():
  """Frees what failed saves leave behind, here and not while another test is compiled."""
  yield
  gc.collect()


@pytest.fixture
def small_disk(tmp_path):
  with mounted(tmp_path / 'disk', 'size=4m') as disk:
    yield disk


def _save_small(directory: pathlib.Path, step: int) -> None:
  with Manager(directory, CheckpointConfig()) as manager:
    manager.save(step, {'params': jax.device_put(_values(step))}, {'step': step})


@pytest.mark.slow
def test_full_disk_leaves_the_older_step(small_disk):
  directory = small_disk / 'run'
  _save_small(directory, 1)
  large = {'params': {'x': jax.random.normal(jax.random.key(0), (2048, 1024))}}
  manager = Manager(directory, CheckpointConfig(keep=1))
  with pytest.raises(UserError, match='The disk is full') as error:
    manager.save(2, large, {})
    manager.wait()
  assert str(directory) in str(error.value) and '\n' not in str(error.value)
  assert _restore_here(directory) == 1  # and what was half written is gone
  with (
    pytest.raises(UserError, match='The disk is full'),
    Manager(directory, CheckpointConfig()) as manager,
  ):
    manager.save(3, large, {})
    time.sleep(1)
    manager.save(4, {'params': jax.device_put(_values(4))}, {})  # tells of the save before it
  _save_small(directory, 5)
  assert _restore_here(directory) == 5


def test_read_only_file_system_is_one_sentence(small_disk):
  _save_small(small_disk / 'run', 1)
  subprocess.run(['mount', '-o', 'remount,ro', small_disk], check=True)
  for name in ('run', 'new'):
    with pytest.raises(UserError, match=r'cannot be read or written \(Read-only file system\)'):
      Manager(small_disk / name, CheckpointConfig())
  with Manager(small_disk / 'run', CheckpointConfig(), read_only=True) as manager:
    assert manager.restore_newest({})[0] == 1
