"""Commands of vit_jax as processes that start quickly: forked from one that has imported everything already.

Importing JAX and Flax takes most of the processor time of a short run; who starts thousands of them pays it once.
A forked process runs `python -m vit_jax.main` as a started one does: JAX's backend begins after the fork.
"""

import json
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence


class ForkServer:
  """Starts commands; as a context manager it ends with its last one.

  Args:
    environment: of all commands; what JAX reads when it is imported must be in here.
  """

  def __init__(self, environment: Mapping[str, str]):
    self._server = subprocess.Popen(
      [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    self._codes: dict[int, int] = {}
    self._changed = threading.Condition()
    self._started: list[int] = []
    threading.Thread(target=self._read, daemon=True).start()

  def __enter__(self) -> 'ForkServer':
    return self

  def __exit__(self, *exception) -> None:
    assert self._server.stdin is not None
    self._server.stdin.close()
    self._server.wait()

  def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: os.PathLike) -> 'Forked':
    """Starts `python -m ARGUMENTS…` with these variables beside the server's; its output is added to `log`."""
    assert self._server.stdin is not None
    request = {'arguments': list(arguments), 'environment': dict(environment), 'log': os.fspath(log)}
    with self._changed:
      self._server.stdin.write(json.dumps(request) + '\n')
      self._server.stdin.flush()
      assert self._changed.wait_for(lambda: bool(self._started), timeout=120), 'the fork server has died'
      return Forked(self, self._started.pop())

  def code(self, pid: int, timeout: float | None) -> int | None:
    """The exit code of a command, or None if it still runs after `timeout` seconds."""
    with self._changed:
      self._changed.wait_for(lambda: pid in self._codes, timeout=timeout)
      return self._codes.get(pid)

  def _read(self) -> None:
    assert self._server.stdout is not None
    for line in self._server.stdout:
      word, pid, code = line.split()
      with self._changed:
        if word == 'started':
          self._started.append(int(pid))
        else:
          self._codes[int(pid)] = int(code)
        self._changed.notify_all()


class Forked:
  """A command, with the methods of `subprocess.Popen` that the harnesses use."""

  def __init__(self, server: ForkServer, pid: int):
    self.pid = pid
    self._server = server

  def poll(self) -> int | None:
    """Its exit code (negative: the signal that killed it), or None while it runs."""
    return self._server.code(self.pid, 0)

  def wait(self, timeout: float | None = None) -> int:
    """Waits for its end; its exit code."""
    code = self._server.code(self.pid, timeout)
    if code is None:
      raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
    return code

  def send_signal(self, number: int) -> None:
    """Sends a signal, unless it has ended."""
    if self.poll() is None:
      os.kill(self.pid, number)


def serve() -> None:
  """Reads a request a line from stdin, forks a process for each, and prints who started and who ended."""
  import vit_jax.checkpoint.lease
  import vit_jax.compilation_cache
  import vit_jax.training.evaluate_checkpoint
  import vit_jax.training.loop  # noqa: F401

  threads = len(os.listdir('/proc/self/task'))
  output = threading.Lock()

  def say(word: str, pid: int, code: int) -> None:
    with output:
      print(word, pid, code, flush=True)

  def reap(pid: int) -> None:
    say('ended', pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

  waiting = []
  for line in sys.stdin:
    request = json.loads(line)
    with output:  # no thread holds it in the child
      pid = os.fork()
    if pid == 0:
      _become(request)
      return
    say('started', pid, 0)
    waiting.append(threading.Thread(target=reap, args=(pid,)))
    waiting[-1].start()
  print(f'{threads} threads when the commands were forked', file=sys.stderr)
  for thread in waiting:
    thread.join()


def _become(request: dict) -> None:
  """Turns this process into the command of a request."""
  log = os.open(request['log'], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  empty = os.open(os.devnull, os.O_RDONLY)
  for source, target in ((empty, 0), (log, 1), (log, 2)):
    os.dup2(source, target)
  os.environ.update(request['environment'])
  name, *rest = request['arguments']
  sys.argv = [name, *rest]
  runpy.run_module(name, run_name='__main__', alter_sys=True)


if __name__ == '__main__':
  serve()
