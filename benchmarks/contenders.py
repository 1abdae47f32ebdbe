"""Contenders of a benchmark, each a process of its own that works whenever it is its turn.

A benchmark starts itself once more for each contender (`start`), and there calls `serve`. Turns alternate
(`take_turns`), so that whatever else the machine does slows all of them. This file needs nothing but Python, since a
contender may run in an environment of its own.
"""

import contextlib
import dataclasses
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# (number of steps) -> name -> figure
Work = Callable[[int], Mapping[str, float]]
Figures = dict[str, float]
SPREAD = 0.15


class Ended(Exception):
  """The process of a contender has ended early; the text is one sentence."""


class Missing(Ended):
  """A contender's library is not here."""


class Contender:
  """The process of a contender.

  Attributes:
    hello: what it said of itself when it was ready.
  """

  def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None):
    """Starts it, and waits until it is ready.

    Args:
      name: of the contender.
      command: what calls `serve`.
      environment: of the process; None: this one's.

    Raises:
      Missing: a library is not here.
      Ended: it failed otherwise.
    """
    self._name = name
    self._errors = tempfile.TemporaryFile('w+')  # noqa: SIM115 (open as long as the process runs)
    self._process = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      text=True,
      env=environment,
    )
    self.hello: dict[str, Any] = self._answer()
    if 'missing' in self.hello:
      self.end()
      raise Missing(f'{name} is left out: there is no {self.hello["missing"]}; install it for its Python.')

  def turn(self, steps: int) -> Figures:
    """The figures of a turn of so many steps; raises Ended where the process has ended."""
    assert self._process.stdin
    with contextlib.suppress(BrokenPipeError):  # there is no answer then, which is said below
      self._process.stdin.write(f'{steps}\n')
      self._process.stdin.flush()
    return self._answer()

  def end(self) -> None:
    """Ends the process, which is not in a turn."""
    self._process.communicate()

  def _answer(self) -> dict[str, Any]:
    assert self._process.stdout
    line = self._process.stdout.readline()
    if line:
      return json.loads(line)
    code = self._process.wait()
    how = f'by {signal.Signals(-code).name}' if code < 0 else f'with exit code {code}'
    self._errors.seek(0)
    said = self._errors.read().strip().splitlines()  # whose last line is the error, if Python could say it
    raise Ended(f'{self._name} ended early {how}: {said[-1].rstrip(".") if said else "it said nothing"}.')


def start(
  commands: Mapping[str, Sequence[str]], environment: Mapping[str, str] | None = None
) -> dict[str, Contender]:
  """Starts contenders, one after the other, for they may time how they compile.

  Args:
    commands: name -> what calls `serve`.
    environment: of the processes; None: this one's.

  Returns:
    Those that are ready. One whose library is missing is left out, with a sentence on the screen.

  Raises:
    SystemExit: one failed otherwise, or none is left; with a sentence.
  """
  started = {}
  for name, command in commands.items():
    try:
      started[name] = Contender(name, command, environment)
    except Missing as error:
      print(error, flush=True)
    except Ended as error:
      sys.exit(str(error))
  if not started:
    sys.exit('No contender is left; install what they need.')
  return started


@dataclasses.dataclass(frozen=True)
class Turns:
  """What was measured.

  Attributes:
    figures: name -> the figures of each turn that all contenders have taken.
    ended: which contender ended early, as a sentence; '': none did.
  """

  figures: dict[str, list[Figures]]
  ended: str

  def each(self, name: str, figure: str) -> list[float]:
    """A figure of a contender in each turn."""
    return [turn[figure] for turn in self.figures[name]]

  def __len__(self) -> int:
    return len(next(iter(self.figures.values())))

  def disagreement(self, figure: str) -> str:
    """A sentence that says whose turns disagree in a figure, so that no ratio is to be believed; '': nobody's.

    The middle half of a contender's turns spans at most SPREAD of their median on a quiet machine.
    """
    spans = {}
    for name in self.figures:
      values = self.each(name, figure)
      if len(values) >= 4:
        low, median, high = statistics.quantiles(values, n=4)
        spans[name] = (high - low) / median
    far = ', '.join(f'{name} ({span:.0%} of its median)' for name, span in spans.items() if span > SPREAD)
    return (
      far
      and f'The machine was not quiet, so believe no ratio: the middle half of the turns spans, for {far}.'
    )


def take_turns(
  contenders: Mapping[str, Contender], turns: int, steps: int, *, uncounted: int = 0, pause: float = 0.0
) -> Turns:
  """Lets contenders work in turn, until one of them ends early.

  Args:
    contenders: by name.
    turns: of each.
    steps: in a turn.
    uncounted: turns before those.
    pause: seconds before each turn.
  """
  figures: dict[str, list[Figures]] = {name: [] for name in contenders}
  ended = ''
  try:
    for number in range(uncounted + turns):
      turn = {}
      for name, contender in contenders.items():
        time.sleep(pause)
        turn[name] = contender.turn(steps)
      for name, own in turn.items() if number >= uncounted else ():
        figures[name].append(own)
  except Ended as error:
    ended = str(error)
  for contender in contenders.values():
    contender.end()
  return Turns(figures, ended)


def serve(build: Callable[[], tuple[Mapping[str, Any], Work]]) -> None:
  """The process of a contender: it says what it is, then each line in is a turn, each line out its figures.

  What it prints meanwhile goes to stderr, line by line, so that a process that is killed has said it.

  Args:
    build: makes (what it says of itself, its work).
  """
  answers = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)
  assert isinstance(sys.stdout, io.TextIOWrapper)
  sys.stdout.reconfigure(line_buffering=True)
  try:
    hello, work = build()
  except ModuleNotFoundError as error:
    if not error.name or '.' in error.name:  # a part of something that is here
      raise
    print(json.dumps({'missing': error.name}), file=answers, flush=True)
    return
  print(json.dumps(hello), file=answers, flush=True)
  for line in sys.stdin:
    print(json.dumps(work(int(line))), file=answers, flush=True)
