"""Runs commands as forks of one process that has imported everything: a tenth of a second instead of six.

A fork runs a module as `python -m` does, in a folder, with arguments and an environment of its own, and ends
as a process of its own.
"""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import pathlib
import runpy
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from processes import HUNG, read_xla_flags, xla_flags

ROOT = pathlib.Path(__file__).parents[1]
_IMPORTED = """
  jax optax orbax.checkpoint matplotlib.figure cv2 sklearn.datasets tensorboardX tensorflow_datasets tqdm
  vit_jax.cli vit_jax.config vit_jax.options.documentation vit_jax.loading vit_jax.foundation.compilation_cache
  vit_jax.training.loop vit_jax.training.evaluate_checkpoint vit_jax.data.sources.tfds
  vit_jax.evaluation.fewshot vit_jax.evaluation.report vit_jax.objectives.masked_patches
  vit_jax.transfer.lines vit_jax.visualize.gallery vit_jax.plan.planner vit_jax.prepare.run vit_jax.study.table
"""
_CAP_VERSION, _DAC_OVERRIDE, _DAC_READ_SEARCH, _PR_CAPBSET_DROP = 0x20080522, 1, 2, 24


class Command:
  """A command that runs, with the methods of `subprocess.Popen` that tests use; its output goes to files."""

  def __init__(self, server: '_Server', pid: int, outputs: Sequence[str]):
    self.pid = pid
    self._server, self._outputs = server, outputs
    self._code: int | None = None

  def poll(self) -> int | None:
    """The exit code (negative: the signal that killed it), or None while it runs."""
    return self._code_after(0)

  def wait(self, timeout: float | None = None) -> int:
    """The exit code, once it has ended.

    Raises:
      subprocess.TimeoutExpired: it still runs after so many seconds.
    """
    code = self._code_after(timeout)
    if code is None:
      raise subprocess.TimeoutExpired(f'fork {self.pid}', timeout or 0, *map(_text, self._outputs))
    return code

  def communicate(self, timeout: float | None = None) -> tuple[str, str]:
    """Waits for the end; what it wrote to stdout and to stderr."""
    self.wait(timeout)
    stdout, stderr = map(_text, self._outputs)
    return stdout, stderr

  def _code_after(self, timeout: float | None) -> int | None:
    """The exit code, kept because a later process may get the same number; None after `timeout` seconds."""
    if self._code is None:
      self._code = self._server.code(self.pid, timeout)
    return self._code

  def send_signal(self, number: int) -> None:
    """Sends a signal, unless it has ended."""
    if self.poll() is None:
      os.kill(self.pid, number)


def start(
  module: str,
  *arguments: str,
  cwd: pathlib.Path,
  environment: Mapping[str, str] | None = None,
  as_anybody: bool = False,
  signal_at: tuple[int, int] | None = None,
  log: pathlib.Path | None = None,
) -> Command:
  """Starts what `python -m module arguments` does; call it from tests.

  Args:
    module: a module, or a package with a `__main__`.
    arguments: of the command line.
    cwd: the folder to run in.
    environment: variables to set, beside this process's and XLA_FLAGS for one device; not those that JAX reads
      when it is imported.
    as_anybody: whether root gives up the right to read and write every file.
    signal_at: (signal, number): the command gets this signal at the audit event (an import, the opening of a
      file, …) of that number after it has begun to listen to Ctrl-C.
    log: a file to which stdout and stderr are added, instead of one file for each.
  """
  server = _server()
  outputs = [str(log)] * 2 if log else [tempfile.mkstemp(dir=server.folder)[1] for _ in range(2)]
  request = {
    'module': module,
    'arguments': arguments,
    'cwd': str(cwd),
    'environment': {
      **os.environ,
      'PYTHONPATH': str(ROOT),
      'XLA_FLAGS': xla_flags(devices=1),
      **(environment or {}),
    },
    'as_anybody': as_anybody and os.geteuid() == 0,
    'signal_at': signal_at,
    'outputs': outputs,
  }
  return Command(server, server.fork(request), outputs)


def run(module: str, *arguments: str, cwd: pathlib.Path, **options: Any) -> subprocess.CompletedProcess:
  """Runs a command to its end; the `options` are those of `start`."""
  command = start(module, *arguments, cwd=cwd, **options)
  try:
    outputs = command.communicate(HUNG)
  except subprocess.TimeoutExpired:
    command.send_signal(signal.SIGKILL)
    raise
  return subprocess.CompletedProcess([module, *arguments], command.wait(), *outputs)


def _text(path: str) -> str:
  return pathlib.Path(path).read_text()


class _Server:
  """This file as a process that forks; it ends, with its forks, when the process that started it does."""

  def __init__(self) -> None:
    self.folder = tempfile.mkdtemp(prefix='vit_jax_forks_')
    atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
    self._process = subprocess.Popen(
      [sys.executable, __file__],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      env={**os.environ, 'PYTHONPATH': str(ROOT), 'OPENBLAS_NUM_THREADS': '1', **_shared_programs()},
      start_new_session=True,
      text=True,
    )
    self._changed = threading.Condition()
    self._started: list[int] = []
    self._codes: dict[int, int] = {}
    self._ended = False
    threading.Thread(target=self._read, daemon=True).start()

  def fork(self, request: Mapping[str, Any]) -> int:
    """The process id of a new fork."""
    assert self._process.stdin is not None
    with self._changed:
      self._process.stdin.write(json.dumps(request) + '\n')
      self._process.stdin.flush()
      self._changed.wait_for(lambda: bool(self._started) or self._ended, HUNG)
      assert self._started, f'the server does not fork (exit code {self._process.poll()})'
      return self._started.pop()

  def code(self, pid: int, timeout: float | None) -> int | None:
    """The exit code of a fork, or None if it still runs after so many seconds."""
    with self._changed:
      self._changed.wait_for(lambda: pid in self._codes or self._ended, timeout)
      return self._codes.get(pid)

  def _read(self) -> None:
    """In a thread: notes who started and who ended."""
    assert self._process.stdout is not None
    for line in self._process.stdout:
      word, pid, code = line.split()
      with self._changed:
        if word == 'started':
          self._codes.pop(int(pid), None)  # of an earlier process that had this number
          self._started.append(int(pid))
        else:
          self._codes[int(pid)] = int(code)
        self._changed.notify_all()
    with self._changed:
      self._ended = True
      self._changed.notify_all()


def _shared_programs() -> dict[str, str]:
  """Variables of JAX by which no command compiles what another one did in the same run of the tests."""
  if 'TESTS_COMPILED' not in os.environ:  # not in pytest: conftest.py makes that folder
    return {}
  return {
    'JAX_ENABLE_COMPILATION_CACHE': 'true',
    'JAX_COMPILATION_CACHE_DIR': os.environ['TESTS_COMPILED'],
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }


@functools.cache
def _server() -> _Server:
  """One of each process that runs tests."""
  return _Server()


def _serve() -> None:
  """In the server: forks for each line of stdin, and says who started and who ended, without threads."""
  for name in _IMPORTED.split():
    __import__(name)
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  child_ended, wakeup = os.pipe()
  os.set_blocking(wakeup, False)
  signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
  signal.signal(signal.SIGCHLD, lambda *_: None)
  requests = b''
  while True:
    ready = select.select([0, child_ended], [], [])[0]
    if child_ended in ready:
      os.read(child_ended, 4096)
      for pid, code in _ended():
        print('ended', pid, code, file=answers)
    if 0 in ready:
      received = os.read(0, 65536)
      if not received:
        os.killpg(0, signal.SIGKILL)
      *lines, requests = (requests + received).split(b'\n')
      for line in lines:
        pid = os.fork()
        if not pid:
          signal.set_wakeup_fd(-1)
          signal.signal(signal.SIGCHLD, signal.SIG_DFL)
          _run(json.loads(line))
          return
        print('started', pid, 0, file=answers)


def _ended() -> Iterator[tuple[int, int]]:
  """(process id, exit code) of the forks that have ended."""
  with contextlib.suppress(ChildProcessError):  # there are no forks
    while (found := os.waitpid(-1, os.WNOHANG))[0]:
      yield found[0], os.waitstatus_to_exitcode(found[1])


def _run(request: Mapping[str, Any]) -> None:
  """In the fork: becomes the command, and ends as it does."""
  os.environ.clear()
  os.environ.update(request['environment'])
  os.chdir(request['cwd'])
  sys.path[0] = request['cwd']
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  for descriptor, path in enumerate(request['outputs'], start=1):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
  signal.signal(signal.SIGINT, signal.default_int_handler)
  if request['as_anybody']:
    _give_up_privileges()
  if request['signal_at'] is not None:
    _signal_at(*request['signal_at'])
  read_xla_flags()
  sys.argv = ['', *request['arguments']]
  try:
    runpy.run_module(request['module'], run_name='__main__', alter_sys=True)
  except SystemExit:
    raise
  except BaseException:
    traceback.print_exc()
    sys.exit(1)


def _signal_at(sent: int, number: int) -> None:
  """Sends a signal at an audit event, counted from where Ctrl-C no longer raises KeyboardInterrupt."""
  count = 0

  def hook(event: str, arguments: tuple[Any, ...]) -> None:
    nonlocal count
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
      count += 1
      if count == number:
        os.kill(os.getpid(), sent)

  sys.addaudithook(hook)


def _give_up_privileges() -> None:
  """Root may no longer read and write what its permissions forbid, nor may the processes that it starts."""
  libc = ctypes.CDLL(None, use_errno=True)
  header, sets = (ctypes.c_uint32 * 2)(_CAP_VERSION, 0), (ctypes.c_uint32 * 6)()
  assert libc.capget(header, sets) == 0
  for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
    assert libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0
    for index in range(3):  # effective, permitted, inheritable
      sets[index] &= ~(1 << capability)
  assert libc.capset(header, sets) == 0


if __name__ == '__main__':
  _serve()
