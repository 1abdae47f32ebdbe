"""What a run pays for profiles that nobody asks for: the quickstart's steps with the profiler's calls and without.

  python benchmarks/profile_cost.py

Prints the time of the profiler's two calls by themselves, and that of a step in alternating turns of one compiled
program, with the calls of training/loop.py around it and without them.
"""

import argparse
import pathlib
import statistics
import time
import timeit

import jax
import numpy as np

from vit_jax.config import from_config_dict
from vit_jax.options import config_files
from vit_jax.training.profiling import Profiler
from vit_jax.training.run import open_training


def seconds_of_the_calls(profiler: Profiler) -> float:
  """Of a step that is not traced."""

  def calls() -> None:
    with profiler.step(1):
      pass
    profiler.finish(1, None)

  return min(timeit.repeat(calls, number=100_000)) / 100_000


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--turns', type=int, default=40, help='of each kind')
  parser.add_argument('--steps', type=int, default=10, help='in a turn')
  args = parser.parse_args()
  run, _ = open_training(from_config_dict(config_files.load('quickstart').to_dict()))
  program = run.program
  step = program.step.lower(program.state, program.batch, {}).compile()
  state = program.init(np.uint32(0))
  batch = {
    name: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)
    for name, leaf in program.batch.items()
  }
  found: dict[str, list[float]] = {'with': [], 'without': []}
  with Profiler(None, pathlib.Path(), print) as profiler:
    print(
      f'the calls of a step that is not traced: {seconds_of_the_calls(profiler) * 1e6:.2f} µs', flush=True
    )
    for turn in range(2 * args.turns + 2):
      name = 'with' if turn % 2 else 'without'
      begin = time.perf_counter()
      for number in range(1, args.steps + 1):
        if name == 'with':
          with profiler.step(number):
            state, metrics = step(state, batch, {})
          profiler.finish(number, metrics)
        else:
          state, metrics = step(state, batch, {})
      jax.block_until_ready(state)
      if turn > 1:  # the first of each kind warm up
        found[name].append((time.perf_counter() - begin) / args.steps)
  for name, values in found.items():
    low, median, high = (1e3 * value for value in np.percentile(values, (10, 50, 90)))
    print(f'{name} them: median {median:.3f} ms a step; 10 and 90 % of the turns {low:.3f} and {high:.3f}')
  ratio = statistics.median(one / other for one, other in zip(*found.values(), strict=True))
  print(f'median ratio of neighbouring turns: {ratio:.4f}')


if __name__ == '__main__':
  main()
