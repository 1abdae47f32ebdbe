import signal
import subprocess
import time

import jax
import pytest
from processes import finish, run, start

from vit_jax.errors import UserError
from vit_jax.parallel import distributed

_VARIABLES = ('JAX_COORDINATOR_ADDRESS', 'JAX_PROCESS_ID', 'JAX_PROCESS_COUNT', 'SLURM_NTASKS')


@pytest.fixture
def calls(monkeypatch):
  """What `jax.distributed.initialize` is called with."""
  result = []
  monkeypatch.setattr(
    distributed.jax.distributed, 'initialize', lambda *args, **options: result.append((args, options))
  )
  for variable in _VARIABLES:
    monkeypatch.delenv(variable, raising=False)
  return result


def test_a_single_process_joins_nothing(calls):
  distributed.initialize()
  assert calls == []


def test_a_laptop_with_libtpu_joins_nothing(calls, monkeypatch):
  """libtpu is installed for `vit_jax.plan`; no TPU is there."""
  monkeypatch.setattr(distributed.importlib.util, 'find_spec', lambda name: object())
  monkeypatch.setenv('TPU_SKIP_MDS_QUERY', '1')
  platforms = jax.config.jax_platforms
  jax.config.update('jax_platforms', None)
  try:
    distributed.initialize()
  finally:
    jax.config.update('jax_platforms', platforms)
  assert calls == []


def test_one_slurm_task_joins_nothing_and_two_do(calls, monkeypatch):
  monkeypatch.setenv('SLURM_STEP_NODELIST', 'n1')
  monkeypatch.setenv('SLURM_NTASKS', '1')
  distributed.initialize()
  assert calls == []
  monkeypatch.setenv('SLURM_NTASKS', '2')
  distributed.initialize()
  assert calls == [((), {'cluster_detection_method': 'slurm', 'heartbeat_timeout_seconds': 180})]


def test_the_three_variables(calls, monkeypatch):
  for name, value in zip(_VARIABLES, ('10.0.0.2:8476', '3', '4')):
    monkeypatch.setenv(name, value)
  distributed.initialize()
  assert calls == [
    (('10.0.0.2:8476', 4, 3), {'cluster_detection_method': 'deactivate', 'heartbeat_timeout_seconds': 180})
  ]


@pytest.mark.parametrize(
  'values, words',
  [
    (('localhost:1', '0', None), 'not JAX_PROCESS_COUNT'),
    (('localhost:1', None, None), 'not JAX_PROCESS_ID and JAX_PROCESS_COUNT'),
    ((None, '0', '2'), 'not JAX_COORDINATOR_ADDRESS'),
    (('localhost:1', '2', '2'), "JAX_PROCESS_ID is '2'"),
    (('localhost:1', 'one', '2'), "JAX_PROCESS_ID is 'one'"),
    (('localhost', '0', '2'), "JAX_COORDINATOR_ADDRESS is 'localhost'"),
  ],
)
def test_wrong_variables_are_one_sentence(calls, monkeypatch, values, words):
  for name, value in zip(_VARIABLES, values):
    if value is not None:
      monkeypatch.setenv(name, value)
  with pytest.raises(UserError, match=words):
    distributed.initialize()


# A loop of "training" in which each process is as fast as it likes; prints the step it stops at.
LOOP = """
  import sys, time
  import jax
  from vit_jax.parallel import distributed
  distributed.initialize()
  with distributed.StopSignal() as stop:
    print('ready', flush=True)
    for step in range(1, 1500):
      time.sleep(0.01 + 0.01 * jax.process_index())
      if stop.stop_requested(step):
        break
  print('stopped at', step, 'of', jax.process_count(), 'again', stop.stop_requested(step + 1))
"""


def _wait_until_ready(processes: list[subprocess.Popen]) -> None:
  for process in processes:
    for line in process.stdout:
      if line.startswith('ready'):
        break
  time.sleep(0.3)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_single_process_stops(number):
  processes = start(LOOP)
  _wait_until_ready(processes)
  processes[0].send_signal(number)
  (output,) = finish(processes)
  assert 'of 1 again True' in output and processes[0].returncode == 0
  assert 0 < int(output.split('stopped at')[1].split()[0]) < 1000


@pytest.mark.parametrize(
  'number, receivers', [(signal.SIGTERM, [1]), (signal.SIGINT, [0]), (signal.SIGINT, [0, 1])]
)
def test_all_processes_stop_at_the_same_step(number, receivers):
  processes = start(LOOP, 2)
  _wait_until_ready(processes)
  for index in receivers:
    processes[index].send_signal(number)
  outputs = finish(processes)
  stopped = [output.split('stopped at')[1].split() for output in outputs]
  assert stopped[0] == stopped[1], outputs
  assert 0 < int(stopped[0][0]) < 1499 and stopped[0][2] == '2'


BUSY = """
  import ctypes
  from vit_jax.parallel.distributed import StopSignal
  with StopSignal():
    print('ready', flush=True)
    sleep = ctypes.CDLL(None).sleep  # in C: Python's own handlers do not run until it is over
    for _ in range(60):
      sleep(1)
"""


def test_a_second_interrupt_ends_the_process_though_the_main_thread_is_busy():
  processes = start(
    'import ctypes\n' + BUSY.replace('range(60)', 'range(1)').replace('sleep(1)', 'usleep(1)')
  )
  finish(processes)
  processes = start(BUSY)
  _wait_until_ready(processes)
  processes[0].send_signal(signal.SIGINT)
  time.sleep(0.5)
  assert processes[0].poll() is None
  processes[0].send_signal(signal.SIGINT)
  finish(processes, timeout=20)
  assert processes[0].returncode == 130


def test_the_old_handlers_come_back():
  output = run("""
    import signal
    from vit_jax.parallel.distributed import StopSignal
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with StopSignal() as stop:
      assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] != before
      assert not stop.stop_requested(1)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1
    print('good')
  """)
  assert output == ['good\n']
