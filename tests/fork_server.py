"""Runs commands as forks of one process that has imported everything: a tenth of a second instead of six.

A fork runs a module as `python -m` does, in a folder, with arguments and an environment of its own, and ends
as a process of its own.
"""

import ctypes
import functools
import json
import os
import pathlib
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
_SECONDS = 300  # that a command may take
_IMPORTED = """
  jax optax orbax.checkpoint matplotlib.figure cv2 sklearn.datasets tensorflow_datasets tqdm
  vit_jax.cli vit_jax.config vit_jax.option_docs vit_jax.loading vit_jax.compilation_cache
  vit_jax.training.loop vit_jax.training.evaluate_checkpoint vit_jax.data.sources.tfds
  vit_jax.evaluation.fewshot vit_jax.evaluation.report vit_jax.objectives.masked_patches
  vit_jax.transfer.runner vit_jax.visualize.gallery vit_jax.plan.planner vit_jax.prepare.run
"""
_CAP_VERSION, _DAC_OVERRIDE, _DAC_READ_SEARCH, _PR_CAPBSET_DROP = 0x20080522, 1, 2, 24


def run(
  module: str,
  *arguments: str,
  cwd: pathlib.Path,
  environment: Mapping[str, str] | None = None,
  as_anybody: bool = False,
  interrupt_at: int | None = None,
) -> subprocess.CompletedProcess:
  """What `python -m module arguments` does; call it from tests.

  Args:
    module: a module, or a package with a `__main__`.
    arguments: of the command line.
    cwd: the folder to run in.
    environment: variables to set, beside this process's.
    as_anybody: whether root gives up the right to read and write every file.
    interrupt_at: sends Ctrl-C at this audit event (an import, the opening of a file, …) after the command has
      begun to listen to signals.
  """
  with tempfile.TemporaryDirectory() as folder:
    request = {
      'module': module,
      'arguments': arguments,
      'cwd': str(cwd),
      'environment': {**os.environ, 'PYTHONPATH': str(ROOT), **(environment or {})},
      'as_anybody': as_anybody and os.geteuid() == 0,
      'interrupt_at': interrupt_at,
      'outputs': [f'{folder}/stdout', f'{folder}/stderr'],
    }
    code = _ask(_server(), request)
    outputs = [pathlib.Path(path).read_text() for path in request['outputs']]
  return subprocess.CompletedProcess([module, *arguments], code, *outputs)


@functools.cache
def _server() -> subprocess.Popen:
  """This file as a process; it ends with the process that started it, whose pipe it reads."""
  environment = dict(os.environ, PYTHONPATH=str(ROOT))
  return subprocess.Popen(
    [sys.executable, __file__],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    env=environment,
    start_new_session=True,
  )


def _ask(server: subprocess.Popen, request: Mapping[str, Any]) -> int:
  """The exit code of a command."""
  assert server.stdin is not None and server.stdout is not None
  server.stdin.write(json.dumps(request).encode() + b'\n')
  server.stdin.flush()
  if not select.select([server.stdout], [], [], _SECONDS)[0]:
    os.killpg(server.pid, signal.SIGKILL)
    _server.cache_clear()
    raise TimeoutError(f'{request["module"]} {request["arguments"]} took more than {_SECONDS} s')
  return int(server.stdout.readline())


def _serve() -> None:
  """Forks for each request of stdin; answers with its exit code."""
  for name in _IMPORTED.split():
    __import__(name)
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  for line in sys.stdin:
    child = os.fork()
    if not child:
      _run(json.loads(line))
      return
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), file=answers)


def _run(request: Mapping[str, Any]) -> None:
  """In the fork: becomes the command, and ends as it does."""
  os.environ.clear()
  os.environ.update(request['environment'])
  os.chdir(request['cwd'])
  sys.path[0] = request['cwd']
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  for descriptor, path in enumerate(request['outputs'], start=1):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
  signal.signal(signal.SIGINT, signal.default_int_handler)
  if request['as_anybody']:
    _give_up_privileges()
  if request['interrupt_at'] is not None:
    _interrupt_at(request['interrupt_at'])
  sys.argv = ['', *request['arguments']]
  try:
    runpy.run_module(request['module'], run_name='__main__', alter_sys=True)
  except SystemExit:
    raise
  except BaseException:
    traceback.print_exc()
    sys.exit(1)


def _interrupt_at(number: int) -> None:
  """Sends Ctrl-C at an audit event, counted from where Ctrl-C no longer raises KeyboardInterrupt."""
  count = 0

  def hook(event: str, arguments: tuple[Any, ...]) -> None:
    nonlocal count
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
      count += 1
      if count == number:
        os.kill(os.getpid(), signal.SIGINT)

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
