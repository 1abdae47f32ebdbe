"""Kills a run again and again, resumes it, and compares what it ends in with a run left alone.

  python tests/kill_and_resume.py --kills=20
  python tests/kill_and_resume.py --kills=20 --processes=2
  python tests/kill_and_resume.py --kills=20 --processes=2 --finish_as_one
  python tests/kill_and_resume.py --kills=20 --rounds=50    # a thousand kills of fifty runs

Dropout, stochastic depth, augmentation, gradient accumulation and an EMA are on. The kills take turns: at any moment,
while a checkpoint is written, during start-up, around an evaluation. Parameters, optimizer state, EMA and all values
of `metrics.jsonl` but those of speed must be the same to the last bit.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import socket
import tempfile
import time

import fork_server
import jax
import numpy as np
import orbax.checkpoint as ocp
from processes import xla_flags
from run_steps import logged

DEVICES = 2  # of a run of one or two processes: the same mesh adds in the same order
EVALUATED, LOGGED = 30, 3  # steps between two evaluations, and between two lines
# Moment -> seconds within which the kill follows.
MOMENTS = {'at any moment': 1.5, 'while saving': 0.03, 'while starting': 2.0, 'around an evaluation': 0.3}
CONFIG = f"""
from vit_jax.config import *

def get_config():
  return to_config_dict(Config(
    total='240 steps',
    batch_size=32,
    accumulation=2,
    model=ViTConfig(
      variant='custom', patch=2, width=32, mlp_dim=64, depth=3, heads=4,
      dropout=0.1, attention_dropout=0.1, stochastic_depth=0.2,
    ),
    data=DataConfig(source='digits', image_size=(8, 8), channels=1, crop='inception', flip=True),
    evaluators={{'test': ClassificationEvaluatorConfig(split='test', every='{EVALUATED} steps')}},
    optimizer=OptimizerConfig(weight_decay=0.1, clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=2e-3, warmup='10%'),
    ema=0.99,
    checkpoint=CheckpointConfig(every='5 steps'),
    log_every='{LOGGED} steps',
  ))
"""


def start(config: pathlib.Path, workdir: pathlib.Path, processes: int) -> list[fork_server.Command]:
  """The run's processes, joined by jax.distributed where there are several, on the same CPU devices in all."""
  flags = [f'--config={config}', f'--workdir={workdir}']
  return [
    fork_server.start(
      'vit_jax.main',
      *flags,
      cwd=workdir.parent,
      environment=variables,
      log=workdir.parent / f'{workdir.name}.{index}.log',
    )
    for index, variables in enumerate(joined(processes, max(DEVICES, processes) // processes))
  ]


def joined(processes: int, devices: int) -> list[dict[str, str]]:
  """The variables of each of a run's processes, which have so many CPU devices each."""
  flags = {'XLA_FLAGS': xla_flags(devices)}
  if processes == 1:
    return [flags]
  with socket.socket() as free:
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
  common = flags | {'JAX_COORDINATOR_ADDRESS': address, 'JAX_PROCESS_COUNT': str(processes)}
  return [common | {'JAX_PROCESS_ID': str(index)} for index in range(processes)]


def kill_once(run: list[fork_server.Command], workdir: pathlib.Path, rng: random.Random, moment: str) -> bool:
  """Kills all processes of a run at a moment; False if one had ended before."""
  before = len(lines(workdir))

  def is_due() -> bool:
    if moment == 'while starting':
      return True
    if len(found := lines(workdir)) <= before:
      return False
    if moment == 'while saving':
      return any((workdir / 'checkpoints').glob('*.orbax-checkpoint-tmp*'))
    return moment == 'at any moment' or json.loads(found[-1])['step'] % EVALUATED == EVALUATED - LOGGED

  while not is_due() and all(process.poll() is None for process in run):
    time.sleep(0.001)
  time.sleep(rng.uniform(0, MOMENTS[moment]))
  for process in run:
    process.send_signal(signal.SIGKILL)
  return [process.wait() for process in run] == [-signal.SIGKILL] * len(run)


def lines(workdir: pathlib.Path) -> list[str]:
  path = workdir / 'metrics.jsonl'
  return path.read_text().splitlines() if path.exists() else []


def finish(run: list[fork_server.Command], workdir: pathlib.Path) -> None:
  codes = [process.wait() for process in run]
  assert codes == [0] * len(codes), (workdir.parent / f'{workdir.name}.0.log').read_text()[-3000:]


def final_arrays(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """Every array of the last checkpoint by name, read with Orbax alone."""
  step = workdir / 'checkpoints' / str(max(int(path.name) for path in (workdir / 'checkpoints').iterdir()))
  handler, result = ocp.PyTreeCheckpointHandler(), {}
  for item in ('params', 'opt_state', 'ema', 'counters', 'model_state'):
    if item == 'model_state' and not (step / item).exists():
      continue  # most models have none
    tree = handler.metadata(step / item).tree
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    tree = handler.restore(step / item, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    for path, leaf in jax.tree.leaves_with_path(tree):
      result[item + jax.tree_util.keystr(path)] = np.asarray(leaf)
  return result


def check(
  kills: int,
  processes: int,
  finish_as: int,
  scratch: pathlib.Path,
  *,
  seed: int = 0,
  config_text: str = CONFIG,
) -> str:
  """Runs everything; AssertionError where a bit differs. Returns what was seen, in a sentence."""
  config = scratch / 'config.py'
  config.write_text(config_text)
  alone, killed = scratch / 'alone', scratch / 'killed'
  finish(start(config, alone, processes), alone)

  rng = random.Random(seed)
  moments = collections.Counter()
  for number in range(kills):
    moment = list(MOMENTS)[number % len(MOMENTS)]
    moments[moment] += kill_once(start(config, killed, processes), killed, rng, moment)
    print(f'kill {number + 1}: {moment}, {len(lines(killed))} lines in metrics.jsonl', flush=True)
  finish(start(config, killed, finish_as), killed)

  arrays, steps = compare(alone, killed)
  return (
    f'{dict(moments)}, {processes} processes, finished as {finish_as}: '
    f'{arrays} arrays and {steps} lines of metrics are bit-identical.'
  )


def compare(alone: pathlib.Path, killed: pathlib.Path) -> tuple[int, int]:
  """Numbers of arrays and of lines of metrics of two runs; AssertionError where a bit differs."""
  expected, got = final_arrays(alone), final_arrays(killed)
  assert expected.keys() == got.keys()
  for name, array in expected.items():
    assert array.dtype == got[name].dtype and array.tobytes() == got[name].tobytes(), f'{name} differs'
  assert logged(alone) == logged(killed), 'metrics.jsonl differs'
  return len(expected), len(logged(alone))


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--kills', type=int, default=20)
  parser.add_argument('--processes', type=int, default=1)
  parser.add_argument('--finish_as_one', action='store_true')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--rounds', type=int, default=1)
  args = parser.parse_args()
  os.environ['JAX_PLATFORMS'] = 'cpu'
  finish_as = 1 if args.finish_as_one else args.processes
  for seed in range(args.seed, args.seed + args.rounds):
    with tempfile.TemporaryDirectory() as folder:
      print(check(args.kills, args.processes, finish_as, pathlib.Path(folder), seed=seed))
