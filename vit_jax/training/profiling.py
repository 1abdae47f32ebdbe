"""Profiles of a run's steps: traces of the host and its devices that TensorBoard's profiler (XProf) opens."""

import contextlib
import pathlib
import re
import signal
import threading
from collections.abc import Callable
from typing import Annotated, Any, Self

import jax

_STEPS_AT_A_SIGNAL = 10


def parse(text: str) -> tuple[int, int]:
  """'steps 10-20' -> (10, 20), the first and the last step of a profile; ValueError for a text that names no steps."""
  match = re.fullmatch(r'\s*steps?\s+(\d+)\s*(?:-\s*(\d+))?\s*', text)
  first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
  if not 1 <= first <= last:
    raise ValueError("it must name steps, such as 'steps 10-20'")
  return first, last


# A type of options: text that `parse` reads.
ProfiledSteps = Annotated[str, parse]


class Profiler:
  """Writes a trace of some steps into a folder, in each process of its own devices.

      with Profiler('steps 10-20', workdir / 'profile', print) as profiler:
        for step in ...:
          with profiler.step(step):
            state, metrics = train_step(state, next(batches))
          profiler.finish(step, metrics)

  SIGUSR1 asks for a trace of the next ten steps, inside the `with` block and in the main thread; the block holds what
  compiles too, which the signal would else end. Steps that are not traced cost two comparisons.
  """

  def __init__(self, steps: str | None, folder: pathlib.Path, say: Callable[[str], None]):
    """A trace is a new folder in `folder/plugins/profile`, as TensorBoard expects, and then `say` gets a sentence."""
    self._first, self._last = parse(steps) if steps else (0, 0)
    self._folder, self._say = folder, say
    self._asked = False
    self._tracing = False

  def __enter__(self) -> Self:
    self._listens = threading.current_thread() is threading.main_thread()
    if self._listens:
      self._handler = signal.signal(signal.SIGUSR1, self._ask)
    return self

  def __exit__(self, *_: object) -> None:
    if self._listens:
      signal.signal(signal.SIGUSR1, self._handler)
    if self._tracing:
      self._tracing = False
      jax.profiler.stop_trace()

  def step(self, step: int) -> contextlib.AbstractContextManager[Any]:
    """Names what happens inside as a step of the trace, if the step is traced."""
    if self._asked and not self._tracing:
      self._asked = False
      self._first, self._last = step, step + _STEPS_AT_A_SIGNAL - 1
    if not self._tracing and self._first <= step <= self._last:
      jax.profiler.start_trace(str(self._folder))
      self._tracing = True
    if not self._tracing:
      return contextlib.nullcontext()
    return jax.profiler.StepTraceAnnotation('train', step_num=step)

  def finish(self, step: int, outputs: Any) -> None:
    """After the last traced step, waits for its `outputs`, writes the trace and says where."""
    if not self._tracing or step < self._last:
      return
    jax.block_until_ready(outputs)
    self._tracing = False
    jax.profiler.stop_trace()
    self._say(
      f'Profile of steps {self._first} to {self._last}: {self._folder} '
      f'(tensorboard --logdir {self._folder}, docs/profiling.md).'
    )

  def _ask(self, *_: object) -> None:
    self._asked = True
