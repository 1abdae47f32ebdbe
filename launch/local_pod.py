"""Runs several processes on this machine, joined as the hosts of a pod are.

python launch/local_pod.py --processes=2 --devices=4 -- --config=configs/quickstart.py --workdir=runs/pod
python launch/local_pod.py --processes=2 --devices=1 --platform=cuda -- --config=… --workdir=…

What follows -- is a command, or flags of vit_jax.main. --devices is the number for each process: simulated
CPU devices, or with --platform=cuda so many of this machine's GPUs. Each process writes to
LOGS/process-N.log. If the first to end early has exit code 75, all are started again; if it has another code,
the others are ended, and this command returns that code. Ctrl-C and SIGTERM are passed to all, once; after
them nothing is started again. If this command is killed, its processes are killed too. --dry-run prints the
commands.
"""

import argparse
import contextlib
import math
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import IO, NamedTuple

from vit_jax.foundation.errors import EXIT_RESTART, EXIT_USER_ERROR, UserError
from vit_jax.parallel import ports

_JOINING = ('JAX_COORDINATOR_ADDRESS', 'JAX_PROCESS_ID', 'JAX_PROCESS_COUNT')
_NOT_INHERITED = (*_JOINING, 'JAX_COORDINATOR_BIND_ADDRESS')
_END_WITH_PARENT = pathlib.Path(__file__).with_name('end_with_parent.py')
_POLL_SECONDS = 0.05
_SECONDS_FOR_OUTPUT = 2.0
_TAIL_LINES = 15

# Gloo, which adds numbers between processes on CPUs, prints this line for every group of processes that
# connects. It is dropped only if both numbers are equal: otherwise a process is missing.
_GLOO_GREETING = re.compile(
  rb'\[Gloo\] Rank \d+ is connected to (\d+) peer ranks\. Expected number of connected [\w ]+: \1\s*'
)


class End(NamedTuple):
  """How a pod ended: the exit code that stands for all processes, and the process that it is from."""

  code: int
  process: int


class Pod:
  """The processes of one start."""

  def __init__(self, command: list[str], environments: list[dict[str, str]], logs: pathlib.Path):
    """
    Args:
      command: what each process runs.
      environments: for each process, its environment variables in addition to those of this process.
      logs: the folder for their output, which is appended.

    Raises:
      UserError: a log cannot be written; nothing was started.
    """
    self.processes: list[subprocess.Popen[bytes]] = []
    self.logs = [logs / f'process-{index}.log' for index in range(len(environments))]
    self._copiers: list[threading.Thread] = []
    opened = _open_logs(logs, self.logs)
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    for own, file in zip(environments, opened, strict=True):
      # In a session of its own: Ctrl-C in the terminal would reach the process in addition to the one that
      # `send` passes on, and a second Ctrl-C ends a run without a save.
      process = subprocess.Popen(
        [sys.executable, str(_END_WITH_PARENT), str(os.getpid()), *command],
        env=inherited | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
      )
      self.processes.append(process)
      assert process.stdout is not None
      copier = threading.Thread(target=_copy_output, args=(process.stdout, file), daemon=True)
      copier.start()
      self._copiers.append(copier)

  def send(self, number: int) -> None:
    """Sends a signal to every process that is still running."""
    for process in self.processes:
      if process.poll() is None:
        process.send_signal(number)

  def wait(self, grace: float) -> End:
    """Waits until all processes and their output have ended.

    Once a process has ended with another code than 0, the others have `grace` seconds left, because they may
    be saving. After a failure, which is any code but 0 and 75, they also get SIGTERM.

    Returns:
      The first failure, else an exit code 75, else 0.
    """
    end, deadline = End(0, 0), math.inf
    while self._running():
      time.sleep(_POLL_SECONDS)
      if end.code in (0, EXIT_RESTART):
        end = self._end_so_far()
        if end.code:
          deadline = min(deadline, time.monotonic() + grace)
        if end.code not in (0, EXIT_RESTART):
          self.send(signal.SIGTERM)
      if time.monotonic() > deadline:
        self.send(signal.SIGKILL)
        for process in self.processes:
          process.wait()
        self._finish_logs()
        return end
    self._finish_logs()
    return self._end_so_far() if end.code in (0, EXIT_RESTART) else end

  def _running(self) -> bool:
    """Whether a process is running. It polls them all: only that makes their exit codes known."""
    return None in [process.poll() for process in self.processes]

  def _end_so_far(self) -> End:
    """The exit code of the processes that have ended, as a shell gives it: 128 + N after signal N.

    If several have failed it is the code of one that was killed: the others fail because they lose it.
    """
    failed = [(p.returncode, number) for number, p in enumerate(self.processes) if p.returncode]
    if not failed:
      return End(0, 0)
    rank = {-signal.SIGKILL: 0, EXIT_RESTART: 2}
    code, number = min(failed, key=lambda failure: rank.get(failure[0], 1))
    return End(code if code > 0 else 128 - code, number)

  def _finish_logs(self) -> None:
    """Waits until the output is in the logs, but not for a process of a process that keeps its pipe open."""
    for copier in self._copiers:
      copier.join(_SECONDS_FOR_OUTPUT)


def _open_logs(folder: pathlib.Path, logs: list[pathlib.Path]) -> list[IO[bytes]]:
  """The files to append to, in a folder that is made if it is not there.

  Raises:
    UserError: it is no folder, or one cannot write there.
  """
  opened: list[IO[bytes]] = []
  try:
    folder.mkdir(parents=True, exist_ok=True)
    for log in logs:
      opened.append(log.open('ab', buffering=0))
  except OSError as error:
    for file in opened:
      file.close()
    raise UserError(
      f'--logs={folder}: {error.filename} cannot be written ({error.strerror}); name another folder.'
    ) from error
  return opened


def _copy_output(pipe: IO[bytes], log: IO[bytes]) -> None:
  """Appends the output of a process to its log, without Gloo's greetings."""
  with log:
    for line in pipe:
      if _GLOO_GREETING.fullmatch(line):
        continue
      with contextlib.suppress(OSError):  # on a full disk, go on reading, or the process would block
        log.write(line)


def environments(processes: int, devices: int, platform: str) -> list[dict[str, str]]:
  """The environment variables of each process; `vit_jax.parallel.distributed` reads those that join them.

  Raises:
    UserError: CUDA_VISIBLE_DEVICES names too few GPUs.
  """
  needed = processes * devices
  visible = os.environ.get('CUDA_VISIBLE_DEVICES', ','.join(map(str, range(needed))))
  gpus = [gpu.strip() for gpu in visible.split(',') if gpu.strip()]
  if platform == 'cuda' and len(gpus) < needed:
    raise UserError(
      f'CUDA_VISIBLE_DEVICES={visible} names {len(gpus)} of the {needed} GPUs that --processes={processes} with '
      f'--devices={devices} take; name more, or lower one of these.'
    )
  with socket.socket() as free:
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
  result = []
  for index in range(processes):
    own = {}
    if processes > 1:
      own = dict(zip(_JOINING, (address, str(index), str(processes)), strict=True))
    if platform == 'cpu':
      flags = f'{os.environ.get("XLA_FLAGS", "")} --xla_force_host_platform_device_count={devices}'
      own |= {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags.strip()}
    else:
      own |= {'CUDA_VISIBLE_DEVICES': ','.join(gpus[index * devices : (index + 1) * devices])}
    result.append(own)
  return result


def run(args: argparse.Namespace, command: list[str]) -> int:
  """Starts the pod, and again as long as it ends with 75; returns its last exit code.

  Raises:
    UserError: too few GPUs, or logs that cannot be written.
  """
  pod: Pod | None = None
  received: list[int] = []

  def pass_on(number: int, frame: FrameType | None) -> None:
    received.append(number)
    if pod is not None:
      pod.send(number)

  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, pass_on)
  while True:
    own = environments(args.processes, args.devices, args.platform)
    pod = Pod(command, own, args.logs)
    print(f'{args.processes} processes are running; their output: {args.logs}/process-*.log', flush=True)
    end = pod.wait(args.grace_seconds)
    address = own[0].get('JAX_COORDINATOR_ADDRESS')
    if end == (EXIT_USER_ERROR, 0) and address and not received and ports.is_taken(address):
      print(f'Another program has taken the port of {address}: starting all with another one.', flush=True)
      continue
    if end.code != EXIT_RESTART or received:
      _say_how_it_ended(pod, end, stopped=bool(received))
      return end.code
    print('Exit code 75: starting all again.', flush=True)


def _say_how_it_ended(pod: Pod, end: End, *, stopped: bool) -> None:
  """Prints the end of the log of a process that failed, and a last line."""
  if end.code == 0:
    print(f'Done: all {len(pod.processes)} processes ended with exit code 0.')
    return
  if end.code == EXIT_RESTART:
    print('Stopped, with exit code 75; the same command goes on from the last checkpoint.')
    return
  log = pod.logs[end.process]
  tail = log.read_text(errors='replace').splitlines()[-_TAIL_LINES:]
  print(f'The end of {log}:', *tail, sep='\n', file=sys.stderr)
  what = 'Stopped' if stopped else 'Failed'
  print(f'{what}: process {end.process} ended with exit code {_named(end.code)}.', file=sys.stderr)


def _named(code: int) -> str:
  """'137 (SIGKILL)', or '2'."""
  with contextlib.suppress(ValueError):
    return f'{code} ({signal.Signals(code - 128).name})'
  return str(code)


def _parse() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
  )
  parser.add_argument('--processes', type=int, default=2)
  parser.add_argument('--devices', type=int, default=1, help='of each process')
  parser.add_argument('--platform', choices=('cpu', 'cuda'), default='cpu')
  parser.add_argument('--logs', type=pathlib.Path, default=pathlib.Path('runs/local_pod'))
  parser.add_argument('--grace_seconds', type=float, default=60, help='for the others after the first end')
  parser.add_argument('--dry-run', action='store_true')
  parser.add_argument('command', nargs='*', help='after --: a command, or flags of vit_jax.main')
  return parser.parse_args()


def main() -> int:
  try:
    return _main(_parse())
  except UserError as error:
    print(error, file=sys.stderr)
    return error.exit_code


def _main(args: argparse.Namespace) -> int:
  """Runs the pod, or prints its commands; the exit code.

  Raises:
    UserError: nothing to run, or not as the flags say.
  """
  command = args.command
  if not command:
    raise UserError('Nothing to run: give the flags of vit_jax.main, or a command, after --.')
  for name in ('processes', 'devices'):
    if getattr(args, name) < 1:
      raise UserError(f'--{name}={getattr(args, name)} is less than one; give at least 1.')
  if command[0].startswith('-'):
    command = [sys.executable, '-m', 'vit_jax.main', *command]
  if args.dry_run:
    for index, own in enumerate(environments(args.processes, args.devices, args.platform)):
      words = ['env', *(f'{name}={value}' for name, value in own.items()), *command]
      print(f'{shlex.join(words)} >>{shlex.quote(str(args.logs / f"process-{index}.log"))} 2>&1')
    return 0
  return run(args, command)


if __name__ == '__main__':
  sys.exit(main())
