"""Several processes on this machine, joined as the hosts of a pod are.

python launch/local_pod.py --processes=2 --devices=4 -- --config=configs/quickstart.py --workdir=runs/pod
python launch/local_pod.py --processes=2 --devices=1 --platform=cuda -- --config=… --workdir=…

What follows -- is a command, or flags of vit_jax.main. --devices are those of each process: CPU devices
(fake ones), or with --platform=cuda so many of this machine's GPUs. Each process writes to its own file
LOGS/process-N.log. Where all that end early end with exit code 75, all are started again; where one ends
with another code, the others are ended too, and this command returns that code. Ctrl-C and SIGTERM go to
all, once; after them nothing is started again. --dry-run prints the commands.
"""

import argparse
import math
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import time

from vit_jax.errors import EXIT_RESTART, EXIT_USER_ERROR

_JOINING = ('JAX_COORDINATOR_ADDRESS', 'JAX_PROCESS_ID', 'JAX_PROCESS_COUNT')
_POLL_SECONDS = 0.05


class Pod:
  """The processes of one start.

  Args:
    command: what each of them runs.
    settings: the environment variables of each, beside those of this process.
    logs: the folder of their output, which is appended.
  """

  def __init__(self, command: list[str], settings: list[dict[str, str]], logs: pathlib.Path):
    self.processes: list[subprocess.Popen] = []
    self.logs = [logs / f'process-{index}.log' for index in range(len(settings))]
    inherited = {name: value for name, value in os.environ.items() if name not in _JOINING}
    for own, path in zip(settings, self.logs, strict=True):
      with path.open('ab') as log:
        # A session of its own: Ctrl-C in the terminal would reach it beside the one that we send, and the
        # second one ends a run without a save.
        process = subprocess.Popen(
          command, env=inherited | own, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
      self.processes.append(process)

  def send(self, number: int) -> None:
    """Sends a signal to every process that still runs."""
    for process in self.processes:
      if process.poll() is None:
        process.send_signal(number)

  def wait(self, grace: float) -> tuple[int, int]:
    """Waits for the end of all; the code that stands for all, and the number of the process it is from.

    That is the first failure's, else 75, else 0. Once a process ends with anything but 0 the others have
    `grace` seconds, for they may be saving. After a failure, and only then, they are sent SIGTERM.
    """
    end, deadline = (0, 0), math.inf
    while self._some_run():
      time.sleep(_POLL_SECONDS)
      if end[0] in (0, EXIT_RESTART) and (end := self._end())[0]:
        deadline = min(deadline, time.monotonic() + grace)
        if end[0] != EXIT_RESTART:
          self.send(signal.SIGTERM)
      if time.monotonic() > deadline:
        self.send(signal.SIGKILL)
        for process in self.processes:
          process.wait()
        return end
    return self._end() if end[0] in (0, EXIT_RESTART) else end

  def _some_run(self) -> bool:
    # All are asked: only that tells their end.
    return None in [process.poll() for process in self.processes]

  def _end(self) -> tuple[int, int]:
    """Of those that have ended: the code as a shell gives it (128 + N after signal N), and whose it is.

    Of several failures it is one that was killed, for the others fail when they lose it.
    """
    ended = [(p.returncode, number) for number, p in enumerate(self.processes) if p.returncode]
    order = {-signal.SIGKILL: 0, EXIT_RESTART: 2}
    code, number = min(ended, key=lambda end: order.get(end[0], 1), default=(0, 0))
    return (code if code >= 0 else 128 - code), number


def settings(processes: int, devices: int, platform: str) -> list[dict[str, str]]:
  """The environment variables of each process; `vit_jax.parallel.distributed` reads those that join them."""
  with socket.socket() as free:
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
  result = []
  for index in range(processes):
    own = dict(zip(_JOINING, (address, str(index), str(processes)))) if processes > 1 else {}
    if platform == 'cpu':
      flags = f'{os.environ.get("XLA_FLAGS", "")} --xla_force_host_platform_device_count={devices}'
      own |= {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags.strip()}
    else:
      visible = os.environ.get('CUDA_VISIBLE_DEVICES', ','.join(map(str, range(processes * devices))))
      mine = visible.split(',')[index * devices : (index + 1) * devices]
      own |= {'CUDA_VISIBLE_DEVICES': ','.join(mine)}
    result.append(own)
  return result


def run(args: argparse.Namespace, command: list[str]) -> int:
  """Starts the pod, and again while it ends with 75; its last code."""
  args.logs.mkdir(parents=True, exist_ok=True)
  stopping = False
  while True:
    pod = Pod(command, settings(args.processes, args.devices, args.platform), args.logs)

    def pass_on(number: int, frame: object, pod: Pod = pod) -> None:
      nonlocal stopping
      stopping = True
      pod.send(number)

    for number in (signal.SIGINT, signal.SIGTERM):
      signal.signal(number, pass_on)
    print(f'{args.processes} processes run; their output: {args.logs}/process-*.log', flush=True)
    code, number = pod.wait(args.grace_seconds)
    if code not in (0, EXIT_RESTART):
      log = pod.logs[number]
      tail = log.read_text(errors='replace').splitlines()[-15:]
      print(f'Ended with exit code {code}. The end of {log}:', *tail, sep='\n', file=sys.stderr)
    if code != EXIT_RESTART or stopping:
      return code
    print('Exit code 75: starting all again.', flush=True)


def main() -> int:
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
  args = parser.parse_args()
  command = args.command
  if not command:
    print('Nothing to run: give the flags of vit_jax.main, or a command, after --.', file=sys.stderr)
    return EXIT_USER_ERROR
  if command[0].startswith('-'):
    command = [sys.executable, '-m', 'vit_jax.main', *command]
  if args.dry_run:
    for index, own in enumerate(settings(args.processes, args.devices, args.platform)):
      words = ['env', *(f'{name}={value}' for name, value in own.items()), *command]
      print(f'{shlex.join(words)} >>{shlex.quote(str(args.logs / f"process-{index}.log"))} 2>&1')
    return 0
  return run(args, command)


if __name__ == '__main__':
  sys.exit(main())
