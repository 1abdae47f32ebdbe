"""Joins the processes of a run, and stops them all at the same step."""

import contextlib
import ctypes
import functools
import glob
import importlib.util
import logging
import math
import os
import pathlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils

from vit_jax.foundation import signals
from vit_jax.foundation.errors import EXIT_RESTART, UserError, end_to_restart
from vit_jax.parallel import ports

_HEARTBEAT = 'VIT_JAX_HEARTBEAT_SECONDS'
_VARIABLES = ('JAX_COORDINATOR_ADDRESS', 'JAX_PROCESS_ID', 'JAX_PROCESS_COUNT')
_SECONDS_TO_JOIN = 290.0
_SEVERAL_SIMULATED = re.compile(r'xla_force_host_platform_device_count=(?!1\b)')
_LOOPBACK = ('localhost', '127.0.0.1', '[::1]')

# After SIGTERM or Ctrl-C the run has this long to reach the end of a step, and then to save and leave.
_SECONDS_TO_REACT = 8.0
_SECONDS_TO_SAVE = 600.0

_log = logging.getLogger(__name__)


def initialize() -> None:
  """Joins the other processes of this run, if there are any. Call it before the first use of JAX.

  It looks, in this order, for the environment variables JAX_COORDINATOR_ADDRESS (host:port of process 0),
  JAX_PROCESS_ID and JAX_PROCESS_COUNT (UserError where they make no sense, or the port is taken); for a Slurm or Open
  MPI job of several tasks; for a TPU VM or a TPU pod on GKE. If there is none of these, this is a single process and
  nothing happens; the network is not asked.
  """
  if _SEVERAL_SIMULATED.search(os.environ.get('XLA_FLAGS', '')):
    # Simulated CPU devices wait for each other in one thread pool, which by default has one thread per core. A device
    # alone waits for none, and takes twice as long with so many threads.
    os.environ.setdefault('NPROC', '64')
  if jax.distributed.is_initialized():
    return
  skip_absent_tpu()
  if 'JAX_PROCESS_ID' in os.environ or 'JAX_PROCESS_COUNT' in os.environ:
    address, process, count = _read_variables()
    if process == 0:
      _check_port(address)
    _join(address, count, process, cluster_detection_method='deactivate', **_bind_address(address))
  elif _task_count('SLURM_NTASKS') > 1 and 'SLURM_STEP_NODELIST' in os.environ:
    _join(cluster_detection_method='slurm')
  elif _task_count('OMPI_COMM_WORLD_SIZE') > 1 and 'OMPI_MCA_orte_hnp_uri' in os.environ:
    _join(cluster_detection_method='ompi')
  elif _on_tpu():
    try:
      _join()
    except (ValueError, OSError) as error:
      # A TPU without a metadata server, as in notebook services: this is the only host.
      _log.warning('This host has a TPU but knows of no others (%s); going on alone.', error)
  elif 'JAX_COORDINATOR_ADDRESS' in os.environ:
    _read_variables()  # raises the error that names the missing variables


def skip_absent_tpu() -> None:
  """Starts JAX on the CPU, without libtpu, where libtpu is installed (plans need it) but there is no TPU.

  Otherwise JAX would load libtpu, which prints a page of errors about the missing TPU, and then use the CPU
  anyway. Call it before the first use of JAX.
  """
  absent = _pci_has_no_tpu() and not _on_tpu() and not _has_tpu_files()
  # GPU support is installed below `jax_plugins`; with it, JAX chooses the platform.
  has_plugins = importlib.util.find_spec('jax_plugins') is not None
  has_libtpu = importlib.util.find_spec('libtpu') is not None
  if absent and has_libtpu and not has_plugins and not _platforms():
    jax.config.update('jax_platforms', 'cpu')


def heartbeat_seconds() -> float:
  """Seconds of silence after which a process is lost: VIT_JAX_HEARTBEAT_SECONDS (1 or more, or a UserError), or 60."""
  text = os.environ.get(_HEARTBEAT, '60')
  try:
    seconds = float(text)
  except ValueError:
    seconds = math.nan
  if not 1 <= seconds < math.inf:
    raise UserError(f'{_HEARTBEAT} is {text!r}; give a number of seconds, 1 or more.')
  return seconds


def _join(*processes: Any, **options: Any) -> None:
  """Calls `jax.distributed.initialize`."""
  # JAX waits ten seconds longer, and then aborts with a page of C++ frames.
  sentence = (
    f'The processes of this run have not joined within {_SECONDS_TO_JOIN:.0f} s; look whether all of them run, and '
    f'whether process 0 is the one that listens at the address that they were given.'
  )
  limit = threading.Timer(_SECONDS_TO_JOIN, end_to_restart, [sentence])
  limit.daemon = True
  limit.start()
  try:
    # JAX aborts the other processes when it takes one for dead; `peers.Peers` is to notice it first.
    jax.distributed.initialize(
      *processes, heartbeat_timeout_seconds=math.ceil(3 * heartbeat_seconds()), **options
    )
  finally:
    limit.cancel()
  if jax.distributed.is_initialized():
    _jax_sigterm_handler()


@functools.cache
def _jax_sigterm_handler() -> Callable[[int], None]:
  """Returns JAX's own handler of SIGTERM, and gives the signal back the action that it had before.

  JAX installs this C function when it joins processes. The function only notes that the signal came, and the
  processes then agree on a step to stop at; a process that hangs would not end. So SIGTERM ends the process
  outside the steps, and during the steps `StopSignal` listens to it and calls the function. Python's `signal`
  module can neither return nor restore a handler that was installed in C.
  """
  c_signal = ctypes.CDLL(None).signal
  c_signal.argtypes, c_signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
  address = c_signal(signal.SIGTERM, signal.SIG_DFL)
  if address in (None, signal.SIG_IGN.value):  # None: the default action
    raise RuntimeError('JAX does not listen to SIGTERM; is jax_enable_preemption_service switched off?')
  before = signal.getsignal(signal.SIGTERM)  # Python does not know that JAX has replaced it
  if before != signal.SIG_DFL:
    signal.signal(signal.SIGTERM, before)
  return ctypes.CFUNCTYPE(None, ctypes.c_int)(address)


def _read_variables() -> tuple[str, int, int]:
  """(address of process 0, number of this process, number of processes), from the environment."""
  missing = [name for name in _VARIABLES if name not in os.environ]
  if missing:
    present = [name for name in _VARIABLES if name in os.environ]
    raise UserError(
      f'the environment has {" and ".join(present)} but not {" and ".join(missing)}; set all three to '
      f'run several processes, none to run one.'
    )
  address, *numbers = (os.environ[name] for name in _VARIABLES)
  if not all(number.isdecimal() for number in numbers) or not int(numbers[0]) < int(numbers[1]):
    raise UserError(
      f'JAX_PROCESS_ID is {numbers[0]!r} and JAX_PROCESS_COUNT {numbers[1]!r}; they must be whole numbers, '
      f'with an id from 0 up to one below the count.'
    )
  if not address.rpartition(':')[2].isdecimal() or ':' not in address:
    raise UserError(f"JAX_COORDINATOR_ADDRESS is {address!r}; give host and port, such as '10.0.0.2:8476'.")
  return address, int(numbers[0]), int(numbers[1])


def _check_port(address: str) -> None:
  """Raises UserError where process 0 cannot listen at the address: JAX would end with a segmentation fault."""
  host, _, port = address.rpartition(':')
  bound = os.environ.get('JAX_COORDINATOR_BIND_ADDRESS') or (
    address if host in _LOOPBACK else f'0.0.0.0:{port}'
  )
  if ports.is_taken(bound):
    raise UserError(
      f'The port {bound.rpartition(":")[2]} of {host}, at which process 0 has to listen, is used by another program; '
      f'choose another one in JAX_COORDINATOR_ADDRESS, for all processes.'
    )


def _bind_address(address: str) -> dict[str, str]:
  """An option of `jax.distributed.initialize`: where process 0 listens. JAX's default is all interfaces.

  When all processes run on this machine, only this machine can connect.
  """
  if address.rpartition(':')[0] in _LOOPBACK and 'JAX_COORDINATOR_BIND_ADDRESS' not in os.environ:
    return {'coordinator_bind_address': address}
  return {}


def _task_count(variable: str) -> int:
  value = os.environ.get(variable, '')
  return int(value) if value.isdecimal() else 0


def _on_tpu() -> bool:
  """Whether this is a host of a TPU, judged by what is on this host alone.

  Without this check `jax.distributed.initialize` raises on a laptop, or waits for a metadata server.
  """
  if 'tpu' not in (_platforms() or 'tpu') or importlib.util.find_spec('libtpu') is None:
    return False
  hosts = os.environ.get('TPU_PROCESS_ADDRESSES') or os.environ.get('TPU_WORKER_HOSTNAMES') or ''
  if ',' in hosts or _task_count('MEGASCALE_NUM_SLICES') > 1:
    return True
  return not _pci_has_no_tpu() and _has_tpu_files()


def _pci_has_no_tpu() -> bool:
  """Whether JAX, when it was imported, found no TPU chip on the PCI bus: it sets this variable then."""
  return 'TPU_SKIP_MDS_QUERY' in os.environ


def _platforms() -> str | None:
  """The platforms that JAX may use, as JAX_PLATFORMS or the program has set them."""
  # JAX defines its options at run time.
  return jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]


def _has_tpu_files() -> bool:
  return bool(glob.glob('/dev/accel*') or glob.glob('/dev/vfio/[0-9]*'))


class StopSignal(signals.Listener):
  """Turns SIGTERM (a preemption) and Ctrl-C (SIGINT) into a stop at the same step in all processes.

      with StopSignal(saved=resumed) as stop:
        for step in ...:
          ...
          with stop.busy():
            evaluate
          if stop.stop_requested(step):
            save and leave
        stop.leave()

  Use it in the main thread. It ends the process itself in three cases:

  - At a second Ctrl-C: at once, with exit code 130.
  - When the main thread hangs: after a signal, the loop has not called `stop_requested` for 8 s, or for twice
    as long as its longest step so far. The exit code is 75 if `saved`, else 128 + the signal's number.
  - When an evaluation or a save (`busy`), or saving and leaving, take longer than ten minutes, or the file system
    of one of the `places` does not answer for 8 s; the exit codes are the same.

  Attributes:
    saved: whether there is a checkpoint from which the same command can go on. The loop sets it after a save.
  """

  def __init__(self, *, saved: bool = False, places: Sequence[pathlib.Path] = ()):
    super().__init__([signal.SIGINT, signal.SIGTERM], self._on_signal)
    self.saved = saved
    self._places = places
    self._answered: dict[pathlib.Path, float] = {}  # since a signal: when each place last answered
    self._signalled = False
    self._interrupts = 0
    self._requested = False
    self._leaving = False
    self._busy = False
    self._longest_step = 0.0  # seconds
    self._left = threading.Event()

  def start(self) -> None:
    """Begins to listen."""
    self._joined = jax.distributed.is_initialized()
    if self._joined:
      self._tell_jax = _jax_sigterm_handler()
    self._last_call = time.monotonic()
    super().start()

  def __exit__(self, *unused: object) -> None:
    super().__exit__(*unused)
    self._left.set()

  def stop_requested(self, step: int) -> bool:
    """Whether the run should save and stop now. All processes get the same answer for the same step.

    Call it once per step, in all processes, with steps that go up by one: joined processes agree on a step
    that none of them has reached yet. Once True, it stays True.
    """
    now = time.monotonic()
    self._longest_step = max(self._longest_step, now - self._last_call)
    self._last_call = now
    if self._joined and multihost_utils.reached_preemption_sync_point(step):
      self._requested = True
    self._leaving = self._requested
    return self._requested

  @contextlib.contextmanager
  def busy(self) -> Iterator[None]:
    """Inside, the run evaluates or saves, which takes longer than a step: after a signal it has ten minutes.

    It would lose the steps since the last save if it were ended before it can save.
    """
    begun = time.monotonic()
    self._busy = True
    try:
      yield
    finally:
      self._last_call += time.monotonic() - begun  # not a part of the step
      self._busy = False

  def leave(self) -> None:
    """Tells that the last step is over: after a signal, what is left to save may now take ten minutes."""
    self._leaving = True

  def _on_signal(self, number: int) -> None:
    if number == signal.SIGINT:
      self._interrupts += 1
      if self._interrupts == 2:
        signals.end_process('Interrupted again; the run ends without another save.', 128 + number)
    if not self._signalled:
      self._signalled = True
      threading.Thread(target=self._end_if_stuck, args=[number], name='stop-signal', daemon=True).start()
    if self._joined:
      self._tell_jax(signal.SIGTERM)  # JAX tells the other processes and finds the step
    else:
      self._requested = True

  def _end_if_stuck(self, number: int) -> None:
    """Runs in a thread from the first signal on, `number`: ends the process if the main thread hangs."""
    signalled = time.monotonic()
    for place in self._places:
      self._answered[place] = signalled
      threading.Thread(target=self._ask, args=[place], name='stop-signal-ask', daemon=True).start()
    to_react = max(_SECONDS_TO_REACT, 2 * self._longest_step)
    while not self._left.wait(0.1):
      limit = _SECONDS_TO_SAVE if self._leaving or self._busy else to_react
      silent = [
        place for place, when in self._answered.items() if time.monotonic() - when > _SECONDS_TO_REACT
      ]
      if silent:
        self._end(number, f'The file system of {silent[0]} has not answered for {_SECONDS_TO_REACT:.0f} s')
      if time.monotonic() - max(signalled, self._last_call) < limit:
        continue
      task = 'reach the end of a step'
      if self._leaving:
        task = 'save'
      elif self._busy:
        task = 'end an evaluation or a save'
      self._end(number, f'The run did not {task} within {limit:.0f} s of {signal.Signals(number).name}')

  def _ask(self, place: pathlib.Path) -> None:
    """Runs in a thread: asks a file system for its size, which one that is slow but alive tells soon."""
    while not self._left.wait(0.5):
      with contextlib.suppress(OSError):  # an error is an answer
        os.statvfs(place)
      self._answered[place] = time.monotonic()

  def _end(self, number: int, reason: str) -> NoReturn:
    if self.saved:
      text = f'{reason}; start the same command again to go on from the last checkpoint.'
      signals.end_process(text, EXIT_RESTART)
    signals.end_process(f'{reason}; nothing had been saved.', 128 + number)
