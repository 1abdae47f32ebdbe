"""The start of several processes, and their stop at one and the same step."""

import glob
import importlib.util
import logging
import math
import os
import signal
import threading

import jax
from jax.experimental import multihost_utils

from vit_jax.errors import UserError

_HEARTBEAT = 'VIT_JAX_HEARTBEAT_SECONDS'
_OURS = ('JAX_COORDINATOR_ADDRESS', 'JAX_PROCESS_ID', 'JAX_PROCESS_COUNT')


def initialize() -> None:
  """Joins the other processes of this run, where there are any; call it before the first use of JAX.

  In this order: the environment variables JAX_COORDINATOR_ADDRESS (host:port of process 0),
  JAX_PROCESS_ID and JAX_PROCESS_COUNT; a Slurm or Open MPI job of several tasks; a TPU VM or a TPU pod
  on GKE. Elsewhere this is a single process and nothing happens: no network is asked.

  Raises:
    UserError: some but not all of the three variables are set, or a variable makes no sense.
  """
  if 'xla_force_host_platform_device_count' in os.environ.get('XLA_FLAGS', ''):
    # CPU devices that are simulated wait for each other in one pool of threads, by default one a core.
    os.environ.setdefault('NPROC', '64')
  if jax.distributed.is_initialized():
    return
  skip_absent_tpu()
  # When JAX itself takes a process for dead it aborts the others; `peers.Peers` is to be the first.
  silence = {'heartbeat_timeout_seconds': math.ceil(3 * heartbeat_seconds())}
  if 'JAX_PROCESS_ID' in os.environ or 'JAX_PROCESS_COUNT' in os.environ:
    address, process, count = _from_environment()
    jax.distributed.initialize(address, count, process, cluster_detection_method='deactivate', **silence)
  elif _tasks('SLURM_NTASKS') > 1 and 'SLURM_STEP_NODELIST' in os.environ:
    jax.distributed.initialize(cluster_detection_method='slurm', **silence)
  elif _tasks('OMPI_COMM_WORLD_SIZE') > 1 and 'OMPI_MCA_orte_hnp_uri' in os.environ:
    jax.distributed.initialize(cluster_detection_method='ompi', **silence)
  elif _on_tpu():
    try:
      jax.distributed.initialize(**silence)
    except (ValueError, OSError) as error:
      # A TPU without a metadata server, as in notebook services: there is only this host.
      logging.getLogger(__name__).warning(
        'This host has a TPU but knows of no others (%s); going on alone.', error
      )
  elif 'JAX_COORDINATOR_ADDRESS' in os.environ:
    _from_environment()  # says what is missing


def skip_absent_tpu() -> None:
  """Where libtpu is installed, as for plans, but no TPU is here: starts JAX on the CPU without it.

  JAX would load libtpu, which prints a page of errors about the TPU that it does not find, and end up on the
  CPU all the same. Call it before the first use of JAX.
  """
  # JAX, at its import, has set the variable if no TPU chip is on the PCI bus.
  absent = 'TPU_SKIP_MDS_QUERY' in os.environ and not _on_tpu() and not _tpu_files()
  # What GPUs need is installed below `jax_plugins`: then it is JAX that chooses.
  others = importlib.util.find_spec('jax_plugins')
  if absent and not others and not jax.config.jax_platforms and importlib.util.find_spec('libtpu'):
    jax.config.update('jax_platforms', 'cpu')


def heartbeat_seconds() -> float:
  """After how much silence a process is lost: VIT_JAX_HEARTBEAT_SECONDS, or 60."""
  text = os.environ.get(_HEARTBEAT, '60')
  try:
    seconds = float(text)
  except ValueError:
    seconds = math.nan
  if not 1 <= seconds < math.inf:
    raise UserError(f'{_HEARTBEAT} is {text!r}; give a number of seconds, 1 or more.')
  return seconds


def _from_environment() -> tuple[str, int, int]:
  """(address of process 0, this process, number of processes)."""
  missing = [name for name in _OURS if name not in os.environ]
  if missing:
    present = [name for name in _OURS if name in os.environ]
    raise UserError(
      f'the environment has {" and ".join(present)} but not {" and ".join(missing)}; set all three to '
      f'run several processes, none to run one.'
    )
  address, *numbers = (os.environ[name] for name in _OURS)
  if not all(number.isdecimal() for number in numbers) or not int(numbers[0]) < int(numbers[1]):
    raise UserError(
      f'JAX_PROCESS_ID is {numbers[0]!r} and JAX_PROCESS_COUNT {numbers[1]!r}; they must be whole numbers, '
      f'with an id from 0 up to one below the count.'
    )
  if not address.rpartition(':')[2].isdecimal() or ':' not in address:
    raise UserError(f"JAX_COORDINATOR_ADDRESS is {address!r}; give host and port, such as '10.0.0.2:8476'.")
  return address, int(numbers[0]), int(numbers[1])


def _tasks(variable: str) -> int:
  value = os.environ.get(variable, '')
  return int(value) if value.isdecimal() else 0


def _on_tpu() -> bool:
  """Is this a host of a TPU, by what lies on this host alone?

  Without this question `jax.distributed.initialize` raises on a laptop, or waits for a metadata server.
  """
  if 'tpu' not in (jax.config.jax_platforms or 'tpu') or importlib.util.find_spec('libtpu') is None:
    return False
  hosts = os.environ.get('TPU_PROCESS_ADDRESSES') or os.environ.get('TPU_WORKER_HOSTNAMES') or ''
  if ',' in hosts or _tasks('MEGASCALE_NUM_SLICES') > 1:
    return True
  # JAX sets this variable at its import where no TPU chip is on the PCI bus.
  if 'TPU_SKIP_MDS_QUERY' in os.environ:
    return False
  return _tpu_files()


def _tpu_files() -> bool:
  return bool(glob.glob('/dev/accel*') or glob.glob('/dev/vfio/[0-9]*'))


class StopSignal:
  """Turns SIGTERM (a preemption) and SIGINT (Ctrl-C) into a stop at the same step in all processes.

      with StopSignal() as stop:
        for step in ...:
          ...
          if stop.stop_requested(step):
            save and leave

  A second SIGINT ends the process at once. Use it in the main thread.
  """

  def __init__(self):
    self._requested = False
    self._interrupts = 0

  def __enter__(self) -> 'StopSignal':
    # JAX, where several processes are joined, listens to SIGTERM itself and tells the others of it: there
    # that signal stays JAX's own, and SIGINT is passed on as one.
    self._joined = jax.distributed.is_initialized()
    mine = [signal.SIGINT] if self._joined else [signal.SIGINT, signal.SIGTERM]
    # Python runs handlers in the main thread when that is back from C++, which may be a long step or a
    # collective that hangs. The number of each signal also goes into this pipe, at once.
    self._read, self._write = os.pipe()
    os.set_blocking(self._write, False)
    self._thread = threading.Thread(target=self._listen, name='stop-signal', daemon=True)
    self._thread.start()
    self._old_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
    self._old = {number: signal.signal(number, _in_listener) for number in mine}
    return self

  def __exit__(self, *_) -> None:
    for number, handler in self._old.items():
      signal.signal(number, handler)
    signal.set_wakeup_fd(self._old_wakeup)
    os.close(self._write)  # the listener reads the end of the file and ends
    self._thread.join()
    os.close(self._read)

  def stop_requested(self, step: int) -> bool:
    """Should the run save and stop now? All processes get the same answer for the same step.

    Call it once a step, in all processes, with numbers that go up by one: where several processes are
    joined, they agree on a step that none of them has reached yet. Once True it stays True.
    """
    if self._joined and multihost_utils.reached_preemption_sync_point(step):
      self._requested = True
    return self._requested

  def _listen(self) -> None:
    while number := os.read(self._read, 1):
      if number[0] == signal.SIGINT:
        self._interrupts += 1
        if self._interrupts > 1:
          os._exit(128 + signal.SIGINT)
      if number[0] not in (signal.SIGINT, signal.SIGTERM):
        continue
      if self._joined:
        os.kill(os.getpid(), signal.SIGTERM)
      else:
        self._requested = True


def _in_listener(number: int, frame: object) -> None:
  """Nothing: the listening thread has the signal already. A handler must be there for it to get it."""
