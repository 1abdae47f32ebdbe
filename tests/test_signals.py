"""Ctrl-C in real processes, whatever their main thread is doing."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import tomllib

import pytest
from fork_server import ROOT
from processes import HUNG

from vit_jax import cli
from vit_jax.foundation import signals

SENTENCE = 'Interrupted; nothing was saved.'
# Seconds that only a process that hangs takes to end: what it is interrupted in takes ten minutes or for ever, so that
# its exit code and its sentence tell that it was not waited for.
# A process that was started in the background of a script ignores SIGINT; these tests may run there.
BEGIN = """
  import signal, sys, time
  signal.signal(signal.SIGINT, signal.default_int_handler)
  from vit_jax.foundation import signals
"""
INSIDE = """
  with signals.end_at_interrupt('Interrupted; nothing was saved.'):
    print('ready', flush=True)
"""


def start(script: str, *arguments: object, **options) -> subprocess.Popen:
  """Runs Python text in a process, whose stdout and stderr are pipes unless `options` say otherwise."""
  command = [sys.executable, '-u', '-c', textwrap.dedent(script), *map(str, arguments)]
  return subprocess.Popen(
    command, **{'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True, **options}
  )


def inside(body: str) -> str:
  """A script whose `body` runs where Ctrl-C ends the process."""
  return textwrap.dedent(BEGIN) + textwrap.dedent(INSIDE) + textwrap.indent(textwrap.dedent(body), '  ')


def interrupt(process: subprocess.Popen, number: int = signal.SIGINT) -> str:
  """Sends Ctrl-C, or another signal, to a process once it is ready, and waits for its end; its stderr."""
  assert process.stdout is not None
  for line in process.stdout:
    if line == 'ready\n':
      break
  time.sleep(0.3)
  assert process.poll() is None
  process.send_signal(number)
  return process.communicate(timeout=HUNG)[1]


BODIES = {
  'python': 'while True: pass',
  'fifo': 'open(sys.argv[1]).read()',
  'c': """
    import ctypes
    while True:
      ctypes.CDLL(None).sleep(600)
  """,
  # A KeyboardInterrupt would be raised inside the finalizer, printed and ignored.
  'finalizer': """
    class Slow:
      def __del__(self):
        time.sleep(1)
    while True:
      Slow()
  """,
  'except': """
    while True:
      try:
        time.sleep(600)
      except BaseException:
        pass
  """,
}


@pytest.mark.parametrize(
  ('body', 'sent'),
  [*((body, signal.SIGINT) for body in BODIES), ('fifo', signal.SIGTERM), ('c', signal.SIGTERM)],
)
def test_signal_ends_the_process_and_ctrl_c_with_one_sentence(tmp_path, body, sent):
  fifo = tmp_path / 'fifo'
  os.mkfifo(fifo)
  process = start(inside(BODIES[body]), fifo)
  errors = interrupt(process, sent)
  ended = (130, f'{SENTENCE}\n') if sent == signal.SIGINT else (-signal.SIGTERM, '')
  assert (process.returncode, errors) == ended


# Sends Ctrl-C when a module is about to be imported, and does not let it be.
INTERRUPTING = """
  import os, signal, sys, time
  signal.signal(signal.SIGINT, signal.default_int_handler)
  def hook(event, arguments):
    if event == 'import' and arguments[0] == os.environ['INTERRUPTED_MODULE']:
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(600)
  sys.addaudithook(hook)
"""


@pytest.fixture
def interrupting(tmp_path) -> pathlib.Path:
  """A folder whose `sitecustomize` has Python interrupt itself."""
  (tmp_path / 'sitecustomize.py').write_text(textwrap.dedent(INTERRUPTING))
  return tmp_path


def interrupted_at(module: str, command: list[str], folder: pathlib.Path) -> tuple[int, str]:
  """(exit code, stderr) of a command that gets Ctrl-C at the import of `module`."""
  environment = {**os.environ, 'PYTHONPATH': f'{folder}:{ROOT}', 'INTERRUPTED_MODULE': module}
  result = subprocess.run(
    [sys.executable, *command], env=environment, cwd=folder, capture_output=True, text=True, timeout=HUNG
  )
  return result.returncode, result.stderr


@pytest.mark.parametrize(
  ('name', 'module'), [*((name, 'vit_jax.cli') for name in cli.COMMANDS), ('train', 'ml_collections')]
)
def test_interrupt_while_a_command_is_imported(name, module, interrupting):
  command = ['-m', cli.COMMANDS[name][0], '--help']
  assert interrupted_at(module, command, interrupting) == (130, 'Interrupted.\n')


@pytest.mark.parametrize(
  ('way', 'module'), [('package', 'absl'), ('script', 'absl'), ('script', 'ml_collections')]
)
def test_interrupt_while_the_command_vit_jax_is_imported(way, module, interrupting):
  place, _, function = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['scripts'][
    'vit_jax'
  ].partition(':')
  script = interrupting / 'vit_jax'  # as pip writes it
  script.write_text(f'from {place} import {function}\n{function}()\n')
  command = ['-m', 'vit_jax'] if way == 'package' else [str(script)]
  code, errors = interrupted_at(module, [*command, 'predict', '--help'], interrupting)
  assert (code, errors) == (130, 'Interrupted.\n')


def test_program_that_imports_vit_jax_keeps_its_own_interrupts(interrupting):
  (interrupting / 'mine.py').write_text('import vit_jax\nimport colorsys\n')
  for command in (['mine.py'], ['-m', 'mine']):
    code, errors = interrupted_at('colorsys', command, interrupting)
    assert 'KeyboardInterrupt' in errors and code != 0


def test_interrupt_while_the_process_waits_for_the_others_of_its_run(monkeypatch):
  monkeypatch.setenv('JAX_COORDINATOR_ADDRESS', 'localhost:1')  # nobody is there
  monkeypatch.setenv('JAX_PROCESS_ID', '1')
  monkeypatch.setenv('JAX_PROCESS_COUNT', '2')
  body = 'from vit_jax.parallel import distributed\nprint("ready")\ndistributed.initialize()'
  process = start(inside(body))
  assert process.stdout is not None and process.stdout.readline() == 'ready\n'  # and once more when imported
  errors = interrupt(process)
  assert process.returncode == 130 and errors.splitlines()[-1] == SENTENCE
  assert 'Traceback' not in errors


def test_interrupt_ends_a_process_whose_output_nobody_reads():
  read_end, write_end = os.pipe()
  process = start(
    inside("""
      import os, threading
      threading.Thread(target=lambda: os.write(2, b'x' * 10**6), daemon=True).start()
      sys.stdout.write('y' * 10**6)
    """),
    stderr=write_end,
  )
  os.close(write_end)
  interrupt(process)
  os.close(read_end)
  assert process.returncode == 130


def test_output_before_an_interrupt_is_not_lost(tmp_path):
  path = tmp_path / 'output'
  script = inside('print("result")\nprint("now", file=sys.stderr, flush=True)\ntime.sleep(600)')
  with path.open('w') as file:
    process = subprocess.Popen(
      [sys.executable, '-c', script], stdout=file, stderr=subprocess.PIPE, text=True, bufsize=1
    )
  assert process.stderr is not None and process.stderr.readline() == 'now\n'
  process.send_signal(signal.SIGINT)
  assert process.wait(timeout=HUNG) == 130
  assert path.read_text() == 'ready\nresult\n'


def test_process_that_ignores_interrupts_goes_on_ignoring_them():
  ignoring = BEGIN.replace('signal.default_int_handler', 'signal.SIG_IGN')
  body = INSIDE + '    time.sleep(1)\n  print("done")\n'
  process = start(textwrap.dedent(ignoring) + textwrap.dedent(body))
  assert process.stdout is not None and process.stdout.readline() == 'ready\n'
  process.send_signal(signal.SIGINT)
  assert process.communicate(timeout=HUNG)[0] == 'done\n' and process.returncode == 0


def test_old_handlers_come_back():
  script = (
    BEGIN
    + """
  with signals.end_at_interrupt('outer'):
    outer = signal.getsignal(signal.SIGINT)
    heard = []
    with signals.Listener([signal.SIGINT, signal.SIGTERM], heard.append):
      signal.raise_signal(signal.SIGINT)
      signal.raise_signal(signal.SIGTERM)
      while len(heard) < 2:
        time.sleep(0.01)
    assert heard == [signal.SIGINT, signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) == outer
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
  assert signal.set_wakeup_fd(-1) == -1
  with signals.end_at_interrupt('outer'):
    with signals.end_at_interrupt('inner'):
      pass
    signal.raise_signal(signal.SIGINT)
    time.sleep(600)
  """
  )
  process = start(script)
  assert (process.communicate(timeout=HUNG)[1], process.returncode) == ('outer\n', 130)


@pytest.mark.parametrize('joined', [False, True])
def test_sigterm_ends_the_first_process_of_a_container(joined, monkeypatch):
  """The kernel ignores SIGTERM there if it has no handler; JAX's handler would only note it."""
  command = ['unshare', '--user', '--map-root-user', '--pid', '--fork', '--kill-child']
  if shutil.which('unshare') is None or subprocess.run([*command, 'true'], capture_output=True).returncode:
    pytest.skip('this system cannot make PID namespaces')
  body = 'print("ready")\ntime.sleep(600)'
  if joined:
    body = f'from vit_jax.parallel import distributed\ndistributed.initialize()\n{body}'
    with socket.socket() as free:
      free.bind(('localhost', 0))
      monkeypatch.setenv('JAX_COORDINATOR_ADDRESS', f'localhost:{free.getsockname()[1]}')
    monkeypatch.setenv('JAX_PROCESS_ID', '0')
    monkeypatch.setenv('JAX_PROCESS_COUNT', '1')
  command += [sys.executable, '-u', '-c', inside(body)]
  process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  assert process.stdout is not None
  assert [process.stdout.readline() for _ in range(2)] == ['ready\n'] * 2
  (child,) = pathlib.Path(f'/proc/{process.pid}/task/{process.pid}/children').read_text().split()
  os.kill(int(child), signal.SIGTERM)
  _, errors = process.communicate(timeout=HUNG)
  assert (process.returncode, errors) == (143, f'{SENTENCE}\n')


def test_listener_without_a_block_hears_an_interrupt_while_modules_are_imported_and_at_the_exit():
  script = """
    import atexit, gc
    atexit.register(time.sleep, 600)
    signals.end_at_interrupt('Interrupted; nothing was saved.').start()
    gc.collect()
    with signals.end_at_interrupt('inner'):
      pass
    print('ready', flush=True)
  """
  process = start(textwrap.dedent(BEGIN) + textwrap.dedent(script))
  errors = interrupt(process)
  assert (process.returncode, errors) == (130, f'{SENTENCE}\n')


@pytest.mark.parametrize('sent', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('cleanup, code, said', [(0, 75, 'cleaned up'), (600, None, 'Interrupted.')])
def test_block_that_cleans_up_gets_a_keyboard_interrupt_and_some_seconds(cleanup, code, said, sent):
  body = f"""
    try:
      with signals.raise_at_interrupt(seconds=1):
        try:
          time.sleep(600)
        finally:
          time.sleep({cleanup})
    except KeyboardInterrupt:
      sys.stderr.write('cleaned up\\n')
      sys.exit(75)
  """
  process = start(inside(body))
  errors = interrupt(process, sent)
  assert (process.returncode, errors) == (code or 128 + sent, f'{said}\n')


@pytest.mark.parametrize('sent', [signal.SIGINT, signal.SIGTERM])
def test_signal_that_is_postponed_arrives_at_the_end_of_the_block(sent):
  body = f"""
    import os
    try:
      with signals.raise_at_interrupt(seconds=60):
        with signals.postponed():
          os.kill(os.getpid(), {int(sent)})
          time.sleep(0.1)
          sys.stderr.write('all of it, ')
        time.sleep(600)
    except KeyboardInterrupt:
      sys.stderr.write('then the signal')
  """
  assert start(inside(body)).communicate(timeout=HUNG)[1] == 'all of it, then the signal'


def test_other_threads_may_postpone_signals():
  heard = []

  def postpone() -> None:
    with signals.postponed():
      heard.append(signal.getsignal(signal.SIGTERM))

  thread = threading.Thread(target=postpone)
  thread.start()
  thread.join()
  assert heard == [signal.getsignal(signal.SIGTERM)]


# The main thread takes no signal, as when it waits for a file system that does not answer.
BLOCKED = 'signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])'


@pytest.mark.skipif(sys.platform != 'linux', reason='other kernels give the signal to another thread')
@pytest.mark.parametrize(
  ('block', 'sent', 'ended'),
  [
    ('signals.raise_at_interrupt(seconds=1)', signal.SIGINT, (130, 'Interrupted.\n')),
    ('signals.raise_at_interrupt(seconds=1)', signal.SIGTERM, (143, 'Interrupted.\n')),
    ('signals.end_at_interrupt("inner")', signal.SIGINT, (130, 'inner\n')),
  ],
)
def test_signal_that_the_main_thread_cannot_take_is_heard_by_the_innermost_block(block, sent, ended):
  process = start(inside(f'{BLOCKED}\nwith {block}:\n  time.sleep(600)'))
  errors = interrupt(process, sent)
  assert (process.returncode, errors) == ended
