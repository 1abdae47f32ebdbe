"""Checks that everything a run needs is there. Start it on all hosts at once, as the run itself.

python launch/preflight.py --workdir=runs/check --data=digits
launch/tpu_vm.sh preflight NAME --zone=Z -- --workdir=gs://my-bucket/check --data=tfds:imagenet2012 --hosts=4

It prints one line for each check: versions (the same on all hosts), the devices of each host, a sum over all
devices, the workdir (written, renamed and read as a checkpoint is, and seen by the other hosts), the data.
The first check that fails ends it with a sentence and exit code 2.
"""

import functools
import importlib.metadata
import pathlib
import platform
import random
import shutil
import socket
import time
import zlib
from collections.abc import Callable

from absl import flags

from vit_jax import cli
from vit_jax.foundation.errors import UserError

_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'The folder that will hold the run, or its address in a bucket.'
)
_DATA = flags.DEFINE_string('data', None, "A source, as config.data.source: 'tfds:NAME', 'folder:/path', …")
_SPLIT = flags.DEFINE_string('split', 'train', 'The split of --data.')
_HOSTS = flags.DEFINE_integer('hosts', None, 'How many hosts (processes) there must be.')
_DEVICES = flags.DEFINE_integer('devices_per_host', None, 'How many devices each of them must have.')

_PACKAGES = ('jax', 'jaxlib', 'libtpu', 'flax', 'optax', 'orbax-checkpoint', 'vit_jax')
_BYTES = 2**20
_SEEN_WITHIN_SECONDS = 90  # a mounted bucket may show an old listing for a minute


def versions() -> str:
  """The versions of Python and of the packages."""
  found = [f'python {platform.python_version()}']
  for package in _PACKAGES:
    try:
      found.append(f'{package} {importlib.metadata.version(package)}')
    except importlib.metadata.PackageNotFoundError:
      continue
  return ', '.join(found)


def devices() -> str:
  """The number of hosts and devices.

  Raises:
    UserError: it is not what --hosts and --devices_per_host say.
  """
  import jax

  hosts, here = jax.process_count(), jax.local_device_count()
  if _HOSTS.value not in (None, hosts):
    raise UserError(f'there are {hosts} hosts, not {_HOSTS.value}; see that all were started together.')
  if _DEVICES.value not in (None, here):
    raise UserError(f'there are {here} devices, not {_DEVICES.value}; see that nothing else holds them.')
  return f'{hosts} hosts with {here} each, {jax.devices()[0].device_kind}'


def psum() -> str:
  """Adds numbers over all devices.

  Raises:
    UserError: the sum is wrong.
  """
  import jax
  import numpy as np
  from jax.sharding import NamedSharding, PartitionSpec

  count = jax.device_count()
  mesh = jax.sharding.Mesh(jax.devices(), ('all',))
  numbers = np.arange(1, count + 1)
  sharded = jax.make_array_from_callback(
    (count,), NamedSharding(mesh, PartitionSpec('all')), lambda index: numbers[index]
  )
  add = jax.shard_map(
    lambda x: jax.lax.psum(x, 'all'), mesh=mesh, in_specs=PartitionSpec('all'), out_specs=PartitionSpec()
  )
  total = int(jax.jit(add)(sharded)[0])
  if total != numbers.sum():
    raise UserError(f'the sum over {count} devices is {total}, not {numbers.sum()}; a device is faulty.')
  return f'right over {count} devices'


class Workdir:
  """Writes, renames and reads files in the workdir the way a checkpoint is written."""

  def __init__(self, path: str):
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    self._path = pathlib.Path(path).expanduser().absolute()
    self._index, self._count = jax.process_index(), jax.process_count()
    # Part of all names, so that files of an earlier check are not taken for those of this one.
    self._nonce = int(multihost_utils.broadcast_one_to_all(np.int32(time.time_ns() % 2**31)))

  def write(self) -> str:
    """Writes a folder under a temporary name, renames it, and reads it.

    Raises:
      UserError: the file system cannot rename folders, or returns other bytes.
    """
    own = self._folder(self._index)
    unfinished = own.with_name(f'{own.name}.tmp')
    (unfinished / 'part').mkdir(parents=True)
    (unfinished / 'part' / 'data').write_bytes(self._content(self._index))
    try:
      unfinished.rename(own)
    except OSError as error:
      shutil.rmtree(unfinished)
      raise UserError(
        f'{self._path}: a folder with folders in it cannot be renamed ({error.strerror}), which is how '
        f'checkpoints are finished; a bucket must be made with --enable-hierarchical-namespace.'
      ) from error
    if (own / 'part' / 'data').read_bytes() != self._content(self._index):
      raise UserError(f'{self._path}: what was written is not what is read; use another file system.')
    free = shutil.disk_usage(self._path).free / 2**30
    return f'{self._path}: written, renamed, read; {free:,.0f} GiB free'

  def shared(self) -> str:
    """Reads what the next host wrote.

    Raises:
      UserError: it is not there.
    """
    other = (self._index + 1) % self._count
    path = self._folder(other) / 'part' / 'data'
    deadline = time.monotonic() + _SEEN_WITHIN_SECONDS
    while not path.exists() and time.monotonic() < deadline:
      time.sleep(1)
    if not path.exists() or path.read_bytes() != self._content(other):
      raise UserError(f'{self._path} is not the same folder on all hosts; mount the same bucket on all.')
    return f'each of {self._count} hosts reads what another wrote'

  def remove(self) -> None:
    """Removes what this host wrote."""
    shutil.rmtree(self._folder(self._index), ignore_errors=True)

  def _folder(self, index: int) -> pathlib.Path:
    return self._path / f'.preflight-{self._nonce}-{index}'

  def _content(self, index: int) -> bytes:
    return random.Random(f'{self._nonce} {index}').randbytes(_BYTES)


def data(name: str) -> str:
  """Opens the source `name` and reads its first and last record.

  Raises:
    UserError: it cannot be read, or is empty.
  """
  from vit_jax.data import sources
  from vit_jax.data.config import DataConfig

  source = sources.open_source(name, _SPLIT.value, data=DataConfig(source=name))
  if not len(source):
    raise UserError(f'{name} has no records.')
  for index in (0, len(source) - 1):
    image = source[index].image
    if not (len(image) if isinstance(image, bytes) else image.size):
      raise UserError(f'{source[index].name} is empty.')
  return f'{name}: {len(source):,} records, {len(source.class_names)} classes'


def _agreed(name: str, check: Callable[[], str], same: bool = True) -> None:
  """Runs a check on all hosts and prints its line once. If it fails on one host, all end and none waits.

  Args:
    name: of the check; the line begins with it.
    check: returns the rest of the line, or raises.
    same: whether all hosts must return the same line.

  Raises:
    UserError: the check failed here or on another host.
  """
  import jax
  import numpy as np
  from jax.experimental import multihost_utils

  text, error = '', None
  try:
    text = check()
  except Exception as problem:
    error = problem
  mine = np.array([error is not None, zlib.crc32(text.encode())], np.uint32)
  all_hosts = multihost_utils.process_allgather(mine).reshape(-1, 2)
  failed, host = np.flatnonzero(all_hosts[:, 0]), f'{socket.gethostname()}, process {jax.process_index()}'
  if error is not None:
    words = ' '.join(str(error).split()) or type(error).__name__
    raise UserError(f'{name}: on {host}: {words}') from error
  if failed.size:
    raise UserError(f'{name}: it failed in process {", ".join(map(str, failed))}, whose output says why.')
  if same and np.unique(all_hosts[:, 1]).size > 1:
    raise UserError(f'{name}: it differs between the hosts, set them up alike; on {host} it is: {text}.')
  if jax.process_index() == 0:
    print(f'{name}: {text}', flush=True)


class BucketWorkdir:
  """Writes and reads objects in a workdir in a bucket."""

  def __init__(self, address: str):
    import jax

    from vit_jax.foundation import buckets

    self._address, self._bucket = address.rstrip('/'), buckets.Bucket(address)
    self._index, self._count = jax.process_index(), jax.process_count()

  def write(self) -> str:
    """Writes an object and reads it; UserError where that fails."""
    self._bucket.write(self._object(self._index), b'preflight')
    self._read(self._index)
    return f'{self._address}: written, read'

  def shared(self) -> str:
    """Reads what the next host wrote; UserError where it is not there."""
    self._read((self._index + 1) % self._count)
    return f'each of {self._count} hosts reads what another wrote'

  def remove(self) -> None:
    """Removes what this host wrote."""
    self._bucket.remove([self._object(self._index)])

  def _read(self, index: int) -> None:
    self._bucket.read(self._object(index), 0, len(b'preflight'))

  def _object(self, index: int) -> str:
    return f'{self._address}/.preflight-{index}'


def main() -> None:
  """Runs the checks."""
  from vit_jax.parallel import distributed

  distributed.initialize()
  _agreed('versions', versions)
  _agreed('devices', devices)
  _agreed('psum', psum)
  if _WORKDIR.value:
    workdir = (BucketWorkdir if '://' in _WORKDIR.value else Workdir)(_WORKDIR.value)
    try:
      _agreed('workdir', workdir.write, same=False)  # the free space may differ
      _agreed('shared', workdir.shared)  # after it, all have read, so that all may remove
    finally:
      workdir.remove()
  if _DATA.value:
    _agreed('data', functools.partial(data, _DATA.value))


if __name__ == '__main__':
  cli.run(main)
