"""What a run pays for profiles that nobody asks for: the quickstart's steps with the profiler and without it.

  python benchmarks/profile_cost.py --turns=10

Prints the profiler's two calls a step by themselves, and the seconds a step of alternating turns with and without
them, whose medians differ by less than turns of one kind do.
"""

import argparse
import contextlib
import pathlib
import statistics
import tempfile
import timeit
from typing import Any

from vit_jax import config_files
from vit_jax.config import from_config_dict
from vit_jax.training import loop
from vit_jax.training.metrics import read_metrics, training_seconds
from vit_jax.training.profiling import Profiler

_NOTHING = contextlib.nullcontext()


class NoProfiler:
  """In the place of `Profiler`: the loop without it."""

  def __init__(self, *_: object):
    pass

  def __enter__(self) -> 'NoProfiler':
    return self

  def __exit__(self, *_: object) -> None:
    pass

  def step(self, step: int) -> Any:
    return _NOTHING

  def finish(self, step: int, outputs: Any) -> None:
    pass


def seconds_a_call() -> float:
  """Of a step that is not traced."""
  with Profiler(None, pathlib.Path(), print) as profiler:

    def calls() -> None:
      with profiler.step(1):
        pass
      profiler.finish(1, None)

    return min(timeit.repeat(calls, number=100_000)) / 100_000


def seconds_a_step(profiler: Any, steps: int) -> float:
  """Of a run whose loop has this profiler."""
  values = config_files.load('quickstart')
  values.update(total=f'{steps} steps', evaluators={})
  values.tensorboard.pictures = False
  loop.Profiler = profiler
  with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
    loop.train(from_config_dict(values.to_dict()), pathlib.Path(folder))
    return training_seconds(read_metrics(pathlib.Path(folder))) / steps


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--turns', type=int, default=10)
  parser.add_argument('--steps', type=int, default=300)
  args = parser.parse_args()
  print(f'a step that is not traced: {seconds_a_call() * 1e6:.2f} µs', flush=True)
  found: dict[str, list[float]] = {'with': [], 'without': []}
  for _ in range(args.turns):
    for name, profiler in (('with', Profiler), ('without', NoProfiler)):
      found[name].append(seconds_a_step(profiler, args.steps))
      print(f'{name}: {found[name][-1] * 1e3:.3f} ms a step', flush=True)
  for name, values in found.items():
    low, middle, high = min(values), statistics.median(values), max(values)
    print(f'{name:7} the profiler: median {middle * 1e3:.3f} ms a step, {low * 1e3:.3f} to {high * 1e3:.3f}')


if __name__ == '__main__':
  main()
