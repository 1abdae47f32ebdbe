"""What processes that read hostile files share: little memory, little time, and an outcome a case."""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.foundation.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
COMPUTING_SECONDS = 5  # of the process, not of the clock, which a busy machine stretches
SECONDS = 60  # on the clock, after which a case is stopped; a busy machine makes all of them slow


def restrict_memory(more: int) -> None:
  """Allows this process so many bytes of address space beyond what it has."""
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
  limit = pages * resource.getpagesize() + more
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def outcomes_of(
  reader: pathlib.Path, cases: Mapping[str, Any], folder: pathlib.Path, **environment: str
) -> tuple[dict[str, tuple[str, str, float]], str]:
  """Runs a script of this folder over cases, in a process of its own.

  Args:
    reader: the script; it is given a JSON file of the cases and prints [case, *outcome] a line.
    cases: name -> what the script reads.
    folder: for the JSON file.
    environment: variables to set.

  Returns:
    (case -> its `outcome`, as far as the process came; its stderr).
  """
  file = folder / 'cases.json'
  file.write_text(json.dumps(cases))
  process = subprocess.run(
    [sys.executable, str(reader), str(file)],
    env=os.environ | {'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu', 'NPROC': '2', **environment},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=30 * SECONDS,
  )
  lines = [json.loads(line) for line in process.stdout.splitlines()]
  return {name: (kind, text, seconds) for name, kind, text, seconds in lines}, process.stderr


def assert_refused(outcomes: Mapping[str, tuple[str, str, float]], name: str, pattern: str) -> None:
  """A case ended with one short sentence that matches the pattern, in time."""
  assert name in outcomes, 'the process that read it died, there or before'
  kind, text, seconds = outcomes[name]
  assert kind == 'UserError', f'{kind}: {text}'
  assert re.search(pattern, text), text
  assert '\n' not in text and len(text) < 1000 and text.endswith('.')
  assert seconds < COMPUTING_SECONDS


def outcome(read: Callable[[], Any], seconds: int = SECONDS) -> tuple[str, str, float]:
  """('read' or the type of the error, its text, seconds of computing)."""
  signal.signal(signal.SIGALRM, _too_long)
  signal.alarm(seconds)
  began = time.process_time()
  try:
    read()
    kind, text = 'read', ''
  except UserError as error:
    kind, text = 'UserError', str(error)
  except BaseException as error:
    kind, text = type(error).__name__, str(error)[:500]
  signal.alarm(0)
  return kind, text, time.process_time() - began


class TooLong(BaseException):
  """A case took too long; no reader catches it."""


def _too_long(*_: object) -> None:
  raise TooLong
