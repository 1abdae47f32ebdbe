"""A run's metrics: `metrics.jsonl`, and TensorBoard beside it, and how fast the run is."""

import itertools
import logging
import math
import pathlib
import time

import jax

from vit_jax.foundation import json_lines
from vit_jax.parallel import hardware
from vit_jax.training.board import Board
from vit_jax.training.run import Run
from vit_jax.training.trackers import Tracker

_log = logging.getLogger(__name__)

_TIME = 'perf/time'  # not what a run computes, as everything below perf/
_SMOOTHING = 0.7  # weight of the intervals before in the estimate of the time that is left


class MetricsLog:
  """Appends a line a logged step to `metrics.jsonl`, and the same numbers to TensorBoard and a tracker, on process 0.

  A resumed run continues where its checkpoint was: later lines, which it will compute again, are
  dropped, and so is a line that a kill cut short. Where earlier lines are missing or damaged, a warning says so.
  """

  def __init__(
    self, workdir: pathlib.Path, resume_step: int | None, log_every: int = 1, tracker: Tracker | None = None
  ):
    """`resume_step`: of the checkpoint from which the run goes on, or None; `log_every`: steps between two lines."""
    resume_step = -1 if resume_step is None else resume_step
    self.complete = False  # whether the run has come to its end, which its tracker is told
    self._tracker = tracker
    self._writes = jax.process_index() == 0
    self.board = Board(workdir, resume_step)
    if not self._writes:
      return
    path = workdir / 'metrics.jsonl'
    kept = [line for line in json_lines.recover(path, _is_sound) if line['step'] <= resume_step]
    steps = [0, *(line['step'] for line in kept)]
    last = steps[-1]
    apart = max(later - earlier for earlier, later in itertools.pairwise([*steps, last + log_every]))
    if last + apart <= resume_step:  # which may have been logged more seldom than from now on
      _log.warning('%s lacks the lines between the steps %d and %d, which are lost.', path, last, resume_step)
    self._lines = json_lines.Writer(path, kept)

  def write(self, step: int, values: dict[str, float]) -> None:
    """Adds the values of a step, and the time in seconds since 1970. NaN and infinity are null in the file."""
    self.board.scalars(step, values)
    if self._tracker is not None:
      self._tracker.write(step, values)
    if self._writes:
      self._lines.append({'step': step, **values, _TIME: round(time.time(), 3)})

  def sync(self) -> None:
    """Returns when the lines survive a power failure, as a checkpoint that is saved after them does."""
    if self._writes:
      self._lines.sync()

  def close(self) -> None:
    """Ends the logs."""
    self.board.close()
    if self._tracker is not None:
      self._tracker.close(self.complete)
    if self._writes:
      self._lines.close()


def read_metrics(workdir: pathlib.Path) -> list[dict[str, float]]:
  """The sound lines of a run's `metrics.jsonl` so far, null as NaN; a warning says what was left out."""
  lines = json_lines.read(workdir / 'metrics.jsonl', _is_sound)
  return [{name: math.nan if value is None else value for name, value in line.items()} for line in lines]


def _is_sound(line: json_lines.Line) -> bool:
  """Whether a line has a step, and numbers or null else."""
  return type(line.get('step')) is int and all(
    value is None or type(value) in (int, float) for value in line.values()
  )


class Speedometer:
  """Images per second, model FLOPs utilisation, time spent waiting for data, and time to the end.

  Evaluation, saving and printing are not training time: call `restart` after them.
  """

  def __init__(self, run: Run):
    self._batch_size = run.config.batch_size
    self._total_steps = run.timeline.total
    # step -> model FLOPs, forward and backward, of all steps before it.
    self._flops_before = run.resizing.sum_before(run.step_flops)
    known = hardware.of(jax.devices()[0].device_kind)
    self._peak = known.peak_flops * run.mesh.size if known else None
    self._seconds_per_flop: float | None = None  # smoothed over the intervals so far
    self.restart()

  def restart(self) -> None:
    """Begins a new interval now."""
    self._begin = time.perf_counter()
    self._waited = 0.0
    self._steps = 0

  def waited(self, seconds: float) -> None:
    """Counts time in which the loop waited for a batch."""
    self._waited += seconds

  def stepped(self) -> None:
    """Counts a step."""
    self._steps += 1

  def read(self, step: int) -> dict[str, float]:
    """The metrics of the interval that ends at `step`; empty if no step was taken in it."""
    seconds = time.perf_counter() - self._begin
    if not self._steps:
      return {}
    done = self._done(step)
    rate = seconds / done
    before = self._seconds_per_flop
    self._seconds_per_flop = rate if before is None else _SMOOTHING * before + (1 - _SMOOTHING) * rate
    values = {
      'perf/images_per_second': self._steps * self._batch_size / seconds,
      'perf/step_ms': 1000 * seconds / self._steps,
      'perf/data_wait': self._waited / seconds,
      'perf/eta_s': self._seconds_left(step, self._seconds_per_flop),
    }
    if self._peak:
      values['perf/mfu'] = done / seconds / self._peak
    return values

  def seconds_left(self, step: int) -> float | None:
    """Estimated time from `step` to the end, without evaluations and saving; None before a measurement."""
    if self._seconds_per_flop is not None:
      return self._seconds_left(step, self._seconds_per_flop)
    if not self._steps:
      return None
    return self._seconds_left(step, (time.perf_counter() - self._begin) / self._done(step))

  def _done(self, step: int) -> float:
    """Model FLOPs of the interval that ends at `step`."""
    return self._flops_before(step) - self._flops_before(step - self._steps)

  def _seconds_left(self, step: int, seconds_per_flop: float) -> float:
    """Time in proportion to the model's FLOPs: steps at another image size differ by theirs."""
    return (self._flops_before(self._total_steps) - self._flops_before(step)) * seconds_per_flop


def training_seconds(lines: list[dict[str, float]]) -> float:
  """Seconds of all training steps that the lines of `metrics.jsonl` cover."""
  seconds, before = 0.0, 0.0
  for line in lines:
    if 'perf/step_ms' in line:
      seconds += (line['step'] - before) * line['perf/step_ms'] / 1000
      before = line['step']
  return seconds
