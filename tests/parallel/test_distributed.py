"""Processes that join, and that stop at the same step."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import commands
import jax
import pytest
from processes import finish, run, start, wait_for_word

from vit_jax.foundation.errors import UserError
from vit_jax.parallel import distributed

_VARIABLES = ('JAX_COORDINATOR_ADDRESS', 'JAX_PROCESS_ID', 'JAX_PROCESS_COUNT')


@pytest.fixture
def calls(monkeypatch):
  """The arguments of each call of `jax.distributed.initialize`, which does nothing."""
  result = []
  monkeypatch.setattr(
    distributed.jax.distributed, 'initialize', lambda *args, **options: result.append((args, options))
  )
  for variable in (*_VARIABLES, 'SLURM_NTASKS'):
    monkeypatch.delenv(variable, raising=False)
  return result


@pytest.fixture
def variables(monkeypatch):
  """Sets the three variables, of which None is left out."""

  def put(*values):
    for name, value in zip(_VARIABLES, values, strict=True):
      if value is not None:
        monkeypatch.setenv(name, value)

  return put


def test_laptop_with_libtpu_joins_nothing(calls, monkeypatch):
  """libtpu is installed for `vit_jax.plan`, but there is no TPU."""
  monkeypatch.setattr(distributed.importlib.util, 'find_spec', lambda name: object())
  monkeypatch.setenv('TPU_SKIP_MDS_QUERY', '1')
  platforms = jax.config.jax_platforms
  jax.config.update('jax_platforms', None)
  try:
    distributed.initialize()
  finally:
    jax.config.update('jax_platforms', platforms)
  assert calls == []


@pytest.mark.parametrize(('devices', 'threads'), [(1, None), (2, '64'), (10, '64')])
def test_several_simulated_devices_have_threads_to_wait_in_and_one_has_those_of_the_machine(
  calls, monkeypatch, devices, threads
):
  monkeypatch.setenv('XLA_FLAGS', f'--xla_force_host_platform_device_count={devices} --xla_dump_to=there')
  monkeypatch.delenv('NPROC')
  distributed.initialize()
  assert os.environ.get('NPROC') == threads


def test_slurm_joins_two_tasks_but_not_one(calls, monkeypatch):
  monkeypatch.setenv('SLURM_STEP_NODELIST', 'n1')
  monkeypatch.setenv('SLURM_NTASKS', '1')
  distributed.initialize()
  assert calls == []
  monkeypatch.setenv('SLURM_NTASKS', '2')
  distributed.initialize()
  assert calls == [((), {'cluster_detection_method': 'slurm', 'heartbeat_timeout_seconds': 180})]


def test_three_variables_are_passed_to_jax(calls, variables):
  variables('10.0.0.2:8476', '3', '4')
  distributed.initialize()
  options = {'cluster_detection_method': 'deactivate', 'heartbeat_timeout_seconds': 180}
  assert calls == [(('10.0.0.2:8476', 4, 3), options)]


@pytest.mark.parametrize(
  'values, words',
  [
    (('localhost:1', None, None), 'not JAX_PROCESS_ID and JAX_PROCESS_COUNT'),
    (('localhost:1', '2', '2'), "JAX_PROCESS_ID is '2'"),
    (('localhost:1', 'one', '2'), "JAX_PROCESS_ID is 'one'"),
    (('localhost', '0', '2'), "JAX_COORDINATOR_ADDRESS is 'localhost'"),
  ],
)
def test_wrong_variables_are_a_user_error(calls, variables, values, words):
  variables(*values)
  with pytest.raises(UserError, match=words):
    distributed.initialize()


@pytest.mark.nightly
@pytest.mark.slow
def test_coordinators_port_in_use_is_one_sentence_and_exit_code_2(tmp_path):
  with socket.create_server(('localhost', 0)) as taken:
    port = taken.getsockname()[1]
    values = (f'localhost:{port}', '0', '2')
    result = commands.run(tmp_path, environment=dict(zip(_VARIABLES, values, strict=True)))
  commands.assert_said(result, f'The port {port} of localhost', 'another program', 'JAX_COORDINATOR_ADDRESS')
  assert len(result.stderr.splitlines()) == 1


def test_process_that_nobody_answers_ends_with_a_sentence_and_exit_code_75():
  """Its time is over at once here, and the listener is no coordinator."""
  script = """
    import os, socket
    from vit_jax.parallel import distributed
    taken = socket.create_server(('localhost', 0))
    os.environ |= {
      'JAX_COORDINATOR_ADDRESS': f'localhost:{taken.getsockname()[1]}',
      'JAX_PROCESS_ID': '1',
      'JAX_PROCESS_COUNT': '2',
    }
    distributed._SECONDS_TO_JOIN = 0.0
    distributed.initialize()
  """
  (process,) = start(script)
  (output,) = finish([process])
  assert process.returncode == 75
  assert output.splitlines()[-1].startswith('The processes of this run have not joined within 0 s; look')


# A training loop in which the processes are not equally fast; it prints the step at which it stops.
LOOP = """
  import sys, time
  import jax
  from vit_jax.parallel import distributed
  distributed.initialize()
  with distributed.StopSignal() as stop:
    print('READY', flush=True)
    for step in range(1, 1500):
      time.sleep(0.01 + 0.01 * jax.process_index())
      if stop.stop_requested(step):
        break
  print('stopped at', step, 'of', jax.process_count(), 'again', stop.stop_requested(step + 1))
"""


def _wait_until_ready(processes: list[subprocess.Popen]) -> None:
  wait_for_word(processes, 'READY')
  time.sleep(0.3)


def _signalled(script: str, number: int, count=1, receivers=(0,), arguments=()):
  """(processes that have ended, what each printed) after some got a signal once all were ready."""
  processes = start(script, count, arguments=arguments)
  _wait_until_ready(processes)
  for index in receivers:
    processes[index].send_signal(number)
  return processes, finish(processes)


@pytest.mark.parametrize(
  ('count', 'number', 'receivers'),
  [
    (1, signal.SIGINT, [0]),
    pytest.param(2, signal.SIGTERM, [1], marks=pytest.mark.slow),
    pytest.param(2, signal.SIGINT, [0, 1], marks=pytest.mark.slow),
  ],
)
def test_all_processes_stop_at_the_same_step(count, number, receivers):
  processes, outputs = _signalled(LOOP, number, count, receivers)
  stopped = {re.sub('.*stopped at', '', output, flags=re.DOTALL) for output in outputs}
  assert [process.returncode for process in processes] == [0] * count and len(stopped) == 1, outputs
  step, ending = stopped.pop().split(maxsplit=1)
  assert 0 < int(step) < 1499 and ending == f'of {count} again True\n'


# The main thread is busy in C, where Python runs no signal handler.
BUSY = """
  import ctypes
  from vit_jax.parallel.distributed import StopSignal
  with StopSignal():
    print('READY', flush=True)
    for _ in range(600):
      ctypes.CDLL(None).sleep(1)
"""


def test_second_interrupt_ends_a_process_that_is_busy():
  processes = start(BUSY)
  _wait_until_ready(processes)
  processes[0].send_signal(signal.SIGINT)
  time.sleep(0.5)
  assert processes[0].poll() is None
  processes[0].send_signal(signal.SIGINT)
  (output,) = finish(processes)
  assert processes[0].returncode == 130
  assert output.strip() == 'Interrupted again; the run ends without another save.'


# A run whose main thread hangs after three steps, in a file that never opens.
# Arguments: the file, 'saved' or '', seconds of a step, seconds to react in place of the default.
HANGING = """
  import sys, time
  from vit_jax.parallel import distributed
  distributed._SECONDS_TO_REACT = float(sys.argv[4])
  distributed.initialize()
  with distributed.StopSignal(saved=sys.argv[2] == 'saved') as stop:
    for step in range(1, 4):
      time.sleep(float(sys.argv[3]))
      assert not stop.stop_requested(step)
    print('READY', flush=True)
    open(sys.argv[1]).read()
"""


@pytest.fixture
def fifo(tmp_path) -> pathlib.Path:
  os.mkfifo(tmp_path / 'fifo')
  return tmp_path / 'fifo'


@pytest.mark.parametrize(
  ('number', 'saved', 'step', 'react', 'code', 'said'),
  [
    (signal.SIGTERM, True, 0, distributed._SECONDS_TO_REACT, 75, r'within 8 s of SIGTERM; start the'),
    (signal.SIGTERM, False, 0, 1, 143, r'within 1 s of SIGTERM; nothing had been saved\.$'),
    (signal.SIGINT, False, 0, 1, 130, r'within 1 s of SIGINT; nothing had been saved\.$'),
    # Twice as long as a step; more where one took longer than it slept.
    (signal.SIGTERM, True, 1.5, 1, 75, r'within ([3-9]|\d\d) s of SIGTERM'),
  ],
)
def test_signal_ends_a_run_that_hangs(fifo, number, saved, step, react, code, said):
  """After the seconds that it has to react."""
  arguments = (fifo, 'saved' if saved else '', step, react)
  (process,), (output,) = _signalled(HANGING, number, arguments=arguments)
  (line,) = output.strip().splitlines()
  assert process.returncode == code and re.search(said, line), output
  assert line.startswith('The run did not reach the end of a step ')


# A run, one second after whose signal something must have happened.
# Arguments: seconds that a save may take, places of the file systems that it needs.
SAVING = """
  import os, pathlib, sys, time
  from vit_jax.parallel import distributed
  distributed._SECONDS_TO_REACT, distributed._SECONDS_TO_SAVE = 1, int(sys.argv[1])
  with distributed.StopSignal(saved=True, places=[pathlib.Path(place) for place in sys.argv[2:]]) as stop:
    for step in range(1, 4):
      assert not stop.stop_requested(step)
    print('READY', flush=True)
"""
AFTER_A_STEP = """
    while not stop.stop_requested(step := step + 1):
      time.sleep(0.01)
    time.sleep(3)
  print('saved')
"""
IN_AN_EVALUATION = """
    with stop.busy():
      time.sleep(4)
    assert stop._longest_step < 4
    assert stop.stop_requested(4)
  print('saved')
"""
WITHOUT_AN_ANSWER = """
    os.statvfs = lambda place: time.sleep(600)
    with stop.busy():
      time.sleep(600)
"""


@pytest.mark.parametrize(
  ('then', 'limit', 'code', 'said'),
  [
    (AFTER_A_STEP, 600, 0, 'saved'),
    (AFTER_A_STEP, 1, 75, 'The run did not save within 1 s'),
    (IN_AN_EVALUATION, 600, 0, 'saved'),  # longer than any step before it
    (IN_AN_EVALUATION, 1, 75, 'did not end an evaluation or a save within 1 s'),
    (WITHOUT_AN_ANSWER, 600, 75, 'The file system of . has not answered for 1 s; start the same command'),
  ],
)
def test_save_has_a_limit_of_its_own_unless_its_file_system_does_not_answer(then, limit, code, said):
  places = () if then is AFTER_A_STEP else ('.', 'nowhere')
  (process,), (output,) = _signalled(SAVING + then, signal.SIGTERM, arguments=(limit, *places))
  assert process.returncode == code and said in output, output


@pytest.mark.slow
def test_sigterm_ends_joined_processes_that_hang(fifo):
  """Before the loop at once, in the loop after the time to react; JAX itself would only note the signal."""
  before_loop = """
    import sys
    from vit_jax.parallel import distributed
    distributed.initialize()
    print('READY', flush=True)
    open(sys.argv[1]).read()
  """
  for script, code in ((before_loop, -signal.SIGTERM), (HANGING, 75)):
    processes, outputs = _signalled(script, signal.SIGTERM, 2, (0, 1), (fifo, 'saved', 0.01, 1))
    assert [process.returncode for process in processes] == [code, code], outputs


LISTENING = """
  import os, re
  from vit_jax.parallel import distributed
  distributed.initialize()
  descriptors = [f'/proc/self/fd/{name}' for name in os.listdir('/proc/self/fd')]
  links = {os.readlink(path) for path in descriptors if os.path.islink(path)}
  for table in ('tcp', 'tcp6'):
    for row in open(f'/proc/self/net/{table}').readlines()[1:]:
      columns = row.split()
      if columns[3] == '0A' and f'socket:[{columns[9]}]' in links:
        print('listens', columns[1])
"""


@pytest.mark.slow
def test_process_0_of_a_local_run_listens_on_this_machine_only():
  output, _ = run(LISTENING, 2)
  listening = [line.split()[1] for line in output.splitlines() if line.startswith('listens')]
  loopback = {'0100007F', '00000000000000000000000001000000', '0000000000000000FFFF00000100007F'}
  assert listening and {address.split(':')[0] for address in listening} <= loopback, output


def test_address_to_listen_on_can_be_chosen(calls, variables, monkeypatch):
  variables('localhost:8476', '0', '4')
  distributed.initialize()
  monkeypatch.setenv('JAX_COORDINATOR_BIND_ADDRESS', '[::]:8476')
  distributed.initialize()
  assert [options.get('coordinator_bind_address') for _, options in calls] == ['localhost:8476', None]


def test_old_handlers_come_back():
  handlers = lambda: [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
  before = handlers()
  with distributed.StopSignal() as stop:
    assert handlers() != before and not stop.stop_requested(1)
  assert handlers() == before and signal.set_wakeup_fd(-1) == -1


def test_canary_jax_listens_to_sigterm_in_c_and_its_function_stops_a_run():
  """`distributed._jax_sigterm_handler` takes that function by `ctypes`: look there first where a new JAX fails here."""
  script = """
    import signal, socket, time
    import jax
    from jax.experimental import multihost_utils
    from vit_jax.parallel import distributed

    with socket.socket() as free:
      free.bind(('localhost', 0))
      address = f'localhost:{free.getsockname()[1]}'
    jax.distributed.initialize(address, 1, 0)
    noted = distributed._jax_sigterm_handler()
    assert not multihost_utils.reached_preemption_sync_point(1)
    noted(signal.SIGTERM)
    step = 2
    while not multihost_utils.reached_preemption_sync_point(step):
      step += 1
      time.sleep(0.01)
    print('stops')
  """
  (output,) = run(script)
  assert output.endswith('stops\n')
