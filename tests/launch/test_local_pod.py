"""Real processes of a local pod."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import commands
import pytest
from fakes import AWKWARD, LAUNCH, ROOT
from processes import HUNG, QUICK, wait_until

POD = [sys.executable, LAUNCH / 'local_pod.py', '--grace_seconds=5']


@pytest.fixture
def start(tmp_path):
  """Starts a pod: start(*flags, command=(…)). What is left of it at the end of the test is ended."""
  pods = []

  def start_one(*flags: str, command: tuple) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if not name.startswith('JAX_')}
    environment |= {'XLA_FLAGS': QUICK, 'JAX_ENABLE_COMPILATION_CACHE': 'false'}
    words = [*POD, f'--logs={tmp_path / "logs"}', *flags, '--', *command]
    pipe = subprocess.PIPE
    pods.append(subprocess.Popen(words, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True))
    return pods[-1]

  yield start_one
  for pod in pods:
    if pod.poll() is None:
      pod.terminate()
      pod.wait(60)


def finish(pod: subprocess.Popen) -> tuple[int, str]:
  """(exit code, stdout and then stderr)."""
  output = ''.join(pod.communicate(timeout=HUNG))
  return pod.returncode, output


def last_line(output: str) -> str:
  return output.splitlines()[-1]


def script(tmp_path: pathlib.Path, text: str) -> list[str]:
  """A command that runs this Python text; `index` is the process, `turn` counts its starts from 1."""
  path = tmp_path / 'script.py'
  path.write_text(
    textwrap.dedent(f"""\
    import os, pathlib, signal, sys, time
    index = int(os.environ.get('JAX_PROCESS_ID', 0))
    pids = pathlib.Path({str(tmp_path)!r}, f'pids.{{index}}')
    with pids.open('a') as file:
      print(os.getpid(), file=file)
    turn = len(pids.read_text().split())
    """)
    + textwrap.dedent(text)
  )
  return [sys.executable, str(path)]


def pids(tmp_path: pathlib.Path, count: int) -> list[int]:
  """The process ids of the newest start, once all processes are running."""
  paths = [tmp_path / f'pids.{index}' for index in range(count)]
  wait_until(lambda: all(path.exists() and path.read_text().endswith('\n') for path in paths))
  return [int(path.read_text().split()[-1]) for path in paths]


def is_running(number: int) -> bool:
  """Whether a process is there and is not a zombie, which only waits to be collected by its parent."""
  try:
    status = pathlib.Path(f'/proc/{number}/stat').read_text()
  except FileNotFoundError:
    return False
  return status.rpartition(')')[2].split()[0] != 'Z'


def assert_gone(numbers: list[int]) -> None:
  assert not any(map(is_running, numbers))


@pytest.mark.slow
def test_two_processes_train_as_one(start, tmp_path):
  config = tmp_path / 'it is.py'
  config.write_text(commands.CONFIG)
  flags = (f'--config={config}', f'--workdir={tmp_path / "run"}')
  code, output = finish(start('--processes=2', command=flags))
  logs = [(tmp_path / 'logs' / f'process-{index}.log').read_text() for index in range(2)]
  assert code == 0, output + logs[0]
  assert last_line(output) == 'Done: all 2 processes ended with exit code 0.'
  assert 'Done after 4 steps' in logs[0] and not any('[Gloo]' in log for log in logs)
  lines = [json.loads(line) for line in (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()]
  assert lines[-1]['step'] == 4


def test_exit_code_75_starts_all_again_with_the_same_logs_and_kills_who_does_not_end(start, tmp_path):
  text = """
  print('turn', turn, 'of', os.environ['JAX_PROCESS_COUNT'], flush=True)
  pathlib.Path(f'{pids}.{turn}').touch()
  while not pids.with_name(f'pids.{1 - index}.{turn}').exists(): time.sleep(0.01)
  if (turn, index) == (2, 1): time.sleep(3600)
  sys.exit(75 if turn < 3 else 0)
  """
  code, output = finish(start('--processes=2', '--grace_seconds=0.5', command=tuple(script(tmp_path, text))))
  assert code == 0, output
  for index in range(2):
    log = (tmp_path / 'logs' / f'process-{index}.log').read_text()
    assert log == 'turn 1 of 2\nturn 2 of 2\nturn 3 of 2\n'


def test_a_port_that_another_program_takes_is_replaced_by_another_one(start, tmp_path):
  text = """
  import socket
  host, _, port = os.environ['JAX_COORDINATOR_ADDRESS'].partition(':')
  first = pathlib.Path(__file__).with_name('first')
  if index == 1 and not first.exists(): signal.pause()
  if index == 0 and turn == 1:
    listener = socket.create_server((host, int(port)))
    first.write_text(port)
    if os.fork(): os._exit(2)
    os.closerange(1, 3)
    listener.accept()
    os._exit(0)
  if index == 0:
    print('another:', first.read_text() != port)
    socket.create_connection((host, int(first.read_text())))
  """
  code, output = finish(start('--processes=2', command=tuple(script(tmp_path, text))))
  assert code == 0, output
  assert 'Another program has taken the port of localhost:' in output
  assert (tmp_path / 'logs/process-0.log').read_text() == 'another: True\n'


@pytest.mark.parametrize(
  ('end', 'code', 'named'), [('sys.exit(1)', 1, '1'), ('os.kill(os.getpid(), 9)', 137, '137 (SIGKILL)')]
)
def test_failed_or_killed_process_ends_all_and_its_exit_code_is_returned(start, tmp_path, end, code, named):
  text = f"""
  if index == 1:
    while not all(path.exists() and path.read_text() for path in map(pids.with_suffix, ('.0', '.2'))):
      time.sleep(0.01)
    print('what is wrong', flush=True)
    {end}
  time.sleep(3600)
  """
  found, output = finish(start('--processes=3', command=tuple(script(tmp_path, text))))
  assert found == code
  assert 'what is wrong' in output
  assert last_line(output) == f'Failed: process 1 ended with exit code {named}.'
  assert_gone(pids(tmp_path, 3))
  assert all(len((tmp_path / f'pids.{index}').read_text().split()) == 1 for index in range(3))


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signal_reaches_all_once_and_nothing_starts_again(start, tmp_path, number):
  text = """
  got = []
  def stop(number, frame):
    got.append(number)
  signal.signal(signal.SIGINT, stop)
  signal.signal(signal.SIGTERM, stop)
  print('ready', flush=True)
  while not got:
    time.sleep(0.01)
  time.sleep(0.3)
  print('got', [int(number) for number in got], flush=True)
  sys.exit(75)
  """
  pod = start('--processes=2', command=tuple(script(tmp_path, text)))
  logs = [tmp_path / 'logs' / f'process-{index}.log' for index in range(2)]
  said = lambda: all(log.exists() and 'ready' in log.read_text() for log in logs)
  wait_until(said, lambda: pod.poll() is None, pod.communicate)
  # Ctrl-C in a terminal goes to its whole session; with sessions of their own, they get one signal, not two.
  assert [os.getsid(pid) for pid in pids(tmp_path, 2)] == pids(tmp_path, 2)
  pod.send_signal(number)
  code, output = finish(pod)
  assert code == 75, output
  assert last_line(output) == 'Stopped, with exit code 75; the same command goes on from the last checkpoint.'
  assert [log.read_text() for log in logs] == [f'ready\ngot [{int(number)}]\n'] * 2


def test_killed_pod_leaves_no_process_alive(start, tmp_path):
  text = """
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  time.sleep(3600)
  """
  pod = start('--processes=3', command=tuple(script(tmp_path, text)))
  running = pids(tmp_path, 3)
  assert all(map(is_running, running))
  pod.kill()
  wait_until(lambda: not any(map(is_running, running)))


def test_process_does_not_start_if_the_pod_has_ended_before():
  parent = subprocess.Popen(['true'])
  parent.wait()
  command = [sys.executable, LAUNCH / 'end_with_parent.py', str(parent.pid), 'echo', 'started']
  result = subprocess.run(command, capture_output=True, text=True)
  assert result.returncode != 0 and result.stdout == ''
  assert result.stderr == f'Process {parent.pid} has ended already; echo was not started.\n'


def test_command_that_does_not_exist_is_one_sentence(start):
  code, output = finish(start('--processes=2', command=('no such command',)))
  assert code == 2 and 'Traceback' not in output
  assert 'no such command cannot be run: No such file or directory.' in output


def test_logs_have_no_greetings_of_gloo_but_its_errors(start, tmp_path):
  text = """
  print('[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1')
  print('[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 2')
  print('[Gloo] connectFullMesh failed', file=sys.stderr)
  print('the end, without a line break', end='')
  """
  command = script(tmp_path, text)
  code, _ = finish(start('--processes=1', command=(command[0], '-u', command[1])))
  assert code == 0
  assert (tmp_path / 'logs' / 'process-0.log').read_text().splitlines() == [
    '[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 2',
    '[Gloo] connectFullMesh failed',
    'the end, without a line break',
  ]


def test_dry_run_prints_the_commands(start, tmp_path):
  code, output = finish(start('--processes=2', '--devices=4', '--dry-run', command=tuple(AWKWARD)))
  assert code == 0
  assert not (tmp_path / 'logs').exists()
  assert len(output.splitlines()) == 2
  show = 'import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))'
  for index, line in enumerate(output.splitlines()):
    (tmp_path / 'logs').mkdir(exist_ok=True)
    # In place of the command, run one that shows its arguments and environment.
    line = line.replace(f'{sys.executable} -m vit_jax.main', f"{sys.executable} -c '{show}'", 1)
    subprocess.run(['bash', '-c', line], check=True)
    words, environment = json.loads((tmp_path / 'logs' / f'process-{index}.log').read_text())
    assert words == AWKWARD
    assert environment['JAX_PROCESS_ID'] == str(index) and environment['JAX_PROCESS_COUNT'] == '2'
    assert '--xla_force_host_platform_device_count=4' in environment['XLA_FLAGS']


@pytest.mark.parametrize('flag', ['--processes=0', '--devices=-1'])
def test_pod_of_nothing_is_refused(start, flag):
  assert finish(start(flag, command=('true',))) == (2, f'{flag} is less than one; give at least 1.\n')


def test_more_gpus_than_are_visible_are_refused(start, monkeypatch):
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0,1,2')
  code, output = finish(start('--processes=2', '--devices=2', '--platform=cuda', command=('true',)))
  assert code == 2 and output.startswith('CUDA_VISIBLE_DEVICES=0,1,2 names 3 of the 4 GPUs that')
  assert len(output.splitlines()) == 1


@pytest.mark.parametrize('place', ['file', 'file/below', 'folder'])
def test_logs_that_cannot_be_written_are_refused_before_anything_starts(start, tmp_path, place):
  (tmp_path / 'file').write_text('')
  (tmp_path / 'folder/process-1.log').mkdir(parents=True)
  command = tuple(script(tmp_path, ''))
  code, output = finish(start(f'--logs={tmp_path / place}', command=command))
  assert code == 2 and output.startswith(f'--logs={tmp_path / place}: ') and len(output.splitlines()) == 1
  assert not list(tmp_path.glob('pids.*'))


def test_gpus_are_divided_and_a_single_process_joins_nothing(start):
  flags = ('--processes=2', '--devices=2', '--platform=cuda', '--dry-run')
  _, output = finish(start(*flags, command=('--config=c',)))
  assert ['CUDA_VISIBLE_DEVICES=0,1' in output, 'CUDA_VISIBLE_DEVICES=2,3' in output] == [True, True]
  assert 'JAX_PLATFORMS' not in output
  _, output = finish(start('--processes=1', '--dry-run', command=('--config=c',)))
  assert 'JAX_PROCESS_ID' not in output
