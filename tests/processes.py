"""Real processes for the tests, joined by jax.distributed over this machine's loopback."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from importlib import metadata

# A line and its end are one write. Gloo prints to the same pipe, in pieces where PYTHONUNBUFFERED is set.
_WHOLE_LINES = 'import sys\nsys.stdout.reconfigure(line_buffering=True)\n'


# Seconds after which a process has hung: an event is waited for however busy the machine is, and a test that never
# ends is still told from one that is slow.
HUNG = 1800


def wait_until(
  condition: Callable[[], object], runs: Callable[[], bool] = lambda: True, what: object = ''
) -> None:
  """Waits for an event; fails with `what` where that which brings it about no longer `runs`, or has hung."""
  end = time.monotonic() + HUNG
  while not condition():
    assert (runs() or condition()) and time.monotonic() < end, what() if callable(what) else what
    time.sleep(0.02)


# Without optimisation, XLA's older way to write fused operations, which jaxlib 0.10 has, is compiled in half the time.
_OF_OLD = metadata.version('jaxlib') < '0.11'
_UNKNOWN_TO_LIBTPU = '--xla_cpu_use_fusion_emitters=false' if _OF_OLD else ''
QUICK = f'--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true {_UNKNOWN_TO_LIBTPU}'


def xla_flags(devices: int) -> str:
  """For so many CPU devices, and a compiler that leaves out what takes its time and changes no result."""
  # By default XLA ends the process where a device waits 40 seconds for another one, as it may on a busy machine.
  patient = f'--xla_cpu_collective_call_terminate_timeout_seconds={HUNG}'
  return f'--xla_force_host_platform_device_count={devices} {QUICK} {patient}'


def read_xla_flags() -> None:
  """Lets jaxlib read XLA_FLAGS now, and leaves in them what libtpu knows, which ends the process at any other."""
  from jax._src.lib import xla_client  # here: those who set the flags import this file before JAX

  xla_client.CompileOptions()
  os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '').replace(_UNKNOWN_TO_LIBTPU, '')


def start(script: str, count: int = 1, *, devices: int = 2, arguments: tuple = ()) -> list[subprocess.Popen]:
  """Starts `count` processes that run the Python text `script`, each with `devices` CPU devices.

  With more than one, `vit_jax.parallel.distributed.initialize()` in the script joins them. Whatever they
  print, errors too, is in their `stdout`, in whole lines.
  """
  with socket.socket() as free:
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
  processes = []
  for index in range(count):
    environment = {
      **{
        name: value for name, value in os.environ.items() if not name.startswith(('JAX_', 'PYTHONUNBUFFERED'))
      },
      'JAX_PLATFORMS': 'cpu',
      'XLA_FLAGS': xla_flags(devices),
    }
    if count > 1:
      environment |= {
        'JAX_COORDINATOR_ADDRESS': address,
        'JAX_PROCESS_ID': str(index),
        'JAX_PROCESS_COUNT': str(count),
      }
    processes.append(
      subprocess.Popen(
        [sys.executable, '-c', _WHOLE_LINES + textwrap.dedent(script), *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
      )
    )
  return processes


def wait_for_word(processes: list[subprocess.Popen], word: str) -> None:
  """Waits until each process has printed `word`, whose line is read away with what precedes it.

  Gloo's words may stand around it in one line, since Gloo prints from another thread. Kills all processes and fails
  where one has hung, or ends before.
  """
  for process in processes:
    assert process.stdout is not None
    printed = []
    too_late = threading.Timer(HUNG, process.kill)
    too_late.start()
    try:
      for text in process.stdout:
        printed.append(text)
        if word in text:
          break
      else:
        for other in processes:
          other.kill()
          other.wait()
        raise AssertionError(f'{word!r} was not printed, but: {"".join(printed)}')
    finally:
      too_late.cancel()


def finish(processes: list[subprocess.Popen]) -> list[str]:
  """Waits for the processes; what each printed. Kills them all where one has hung."""
  try:
    return [process.communicate(timeout=HUNG)[0] for process in processes]
  finally:
    for process in processes:
      if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()


def run(script: str, count: int = 1, *, devices: int = 2, arguments: tuple = ()) -> list[str]:
  """Runs the processes to their end; what each printed. All must succeed."""
  processes = start(script, count, devices=devices, arguments=arguments)
  outputs = finish(processes)
  for process, output in zip(processes, outputs, strict=True):
    assert process.returncode == 0, output
  return outputs
