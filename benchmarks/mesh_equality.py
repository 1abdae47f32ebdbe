"""The same training on every mesh: how far losses and parameters are from those of one device.

  python benchmarks/mesh_equality.py
  python benchmarks/mesh_equality.py --data=cifar10 --optimizers=sgd,adam

A small ViT in float32 with everything random switched on (crops, RandAugment, mirroring, mixup, CutMix,
dropout, attention dropout, stochastic depth) is trained by the trainer's own step on its own batches: on one
device, then on each mesh of eight, which are those of one process, of two and of four
(`launch/local_pod.py`). All of them compute the same sums in another order, so what differs is rounding, and
how training magnifies it. The row 'last bit' says how much that is: one device again, where each first
parameter is the next float32 number up or down. Prints a table of the largest deviations; the exit code is 1
if one is beyond the limit.
"""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from vit_jax import config as c

LAUNCHER = pathlib.Path(__file__).parents[1] / 'launch' / 'local_pod.py'
PODS = {'1 process': (1, 8), '2 processes': (2, 4), '4 processes': (4, 2)}  # processes, devices of each
MESHES = {
  'data 8': {'data': 8},
  'fsdp 8': {'fsdp': 8},
  'tensor 8': {'tensor': 8},
  'data 2 x fsdp 2 x tensor 2': {'data': 2, 'fsdp': 2, 'tensor': 2},
  'replica 2 x fsdp 2 x tensor 2': {'replica': 2, 'fsdp': 2, 'tensor': 2},
  'fsdp 4 x tensor 2, accumulation 4': {'fsdp': 4, 'tensor': 2, 'accumulation': 4},
}
ONE_DEVICE = {'one': {}, 'accumulation 4': {'accumulation': 4}, 'last bit': {}}
SIZES = {'digits': (8, 1, 2), 'cifar10': (32, 3, 4)}  # pixels, channels, patch
# The optimizer, its learning rate, and the largest relative deviation that is rounding. Adam divides by the
# gradient's size, so that where a gradient is small its rounding counts as much as another's: ten times more.
OPTIMIZERS = {
  'sgd': (c.OptimizerConfig(name='sgd', weight_decay=0.1, clip_norm=1.0), 0.1, 2e-5),
  'adam': (c.OptimizerConfig(weight_decay=0.1, clip_norm=1.0), 1e-3, 2e-4),
}
# Softmax does not change when all keys are shifted: the gradient is zero but for rounding.
WITHOUT_GRADIENT = 'blocks/attention/key/bias'

Run = dict[str, np.ndarray]  # 'loss' of every step, and the last parameters by path


def config_of(data: str, optimizer: str, steps: int, settings: dict[str, int]) -> c.Config:
  """A run of the table; `settings` are axes of the mesh, and the accumulation."""
  side, channels, patch = SIZES[data]
  chosen, rate, _ = OPTIMIZERS[optimizer]
  axes = {axis: size for axis, size in settings.items() if axis != 'accumulation'}
  return c.Config(
    total=f'{steps} steps',
    batch_size=32,
    accumulation=settings.get('accumulation', 1),
    model=c.ViTConfig(
      variant='custom',
      patch=patch,
      width=64,
      mlp_dim=128,
      depth=3,
      heads=8,
      dropout=0.1,
      attention_dropout=0.1,
      stochastic_depth=0.2,
    ),
    data=c.DataConfig(
      source=data if data == 'digits' else f'tfds:{data}',
      image_size=(side, side),
      channels=channels,
      augment='randaugment(2,10)',
      mixup=0.5,
      cutmix=1.0,
      mix_per='example',
    ),
    objective=c.ClassificationObjective(label_smoothing=0.1),
    optimizer=chosen,
    schedule=c.ScheduleConfig(learning_rate=rate, warmup='3 steps'),
    mesh=dataclasses.replace(c.MeshConfig(data=1, min_shard_size=1), **axes),
  )


def train(config: c.Config, *, nudged: bool = False) -> Run:
  """Losses and last parameters of a run over all devices of all processes; `nudged`: the row 'last bit'."""
  import jax
  from jax.experimental import multihost_utils

  from vit_jax.data import sources
  from vit_jax.data.pipeline import TrainPipeline
  from vit_jax.parallel.mesh import batch_sharding, make_mesh
  from vit_jax.training.step import make_train_step

  mesh = make_mesh(config.mesh)
  source = sources.open_source(config.data.source, config.data.split, data=config.data)
  program = make_train_step(config, mesh, num_classes=len(source.class_names), examples=len(source))
  sharding = batch_sharding(mesh)
  pipeline = TrainPipeline(
    source, config.data, batch_size=config.batch_size, seed=config.seed, sharding=sharding
  )
  state = program.init(np.uint32(config.seed))
  if nudged:
    state = state._replace(params=jax.tree.map(_next_numbers, state.params))
  loss = []
  for step in range(int(config.total.split()[0])):
    state, metrics = program.step(state, pipeline.batch(step))
    loss.append(float(metrics['train/loss']))
  whole = multihost_utils.process_allgather(state.params, tiled=True)
  name = lambda path: jax.tree_util.keystr(path, simple=True, separator='/')
  return {'loss': np.array(loss)} | {name(p): np.asarray(x) for p, x in jax.tree.leaves_with_path(whole)}


def _next_numbers(leaf):
  """Each element the next float32 number up or down, at random."""
  import jax

  up = np.random.default_rng(0).random(leaf.shape) < 0.5
  return jax.device_put(np.nextafter(leaf, np.where(up, np.inf, -np.inf).astype(leaf.dtype)), leaf.sharding)


def work(args: argparse.Namespace) -> None:
  """What each process of a pod runs: all rows of the table of its kind, saved by the first process."""
  from vit_jax.parallel import distributed

  distributed.initialize()
  import jax

  rows = MESHES if jax.device_count() > 1 else ONE_DEVICE
  for optimizer in args.optimizers.split(','):
    for name, settings in rows.items():
      run = train(config_of(args.data, optimizer, args.steps, settings), nudged=name == 'last bit')
      if jax.process_index() == 0:
        np.savez(pathlib.Path(args.work) / f'{optimizer}, {name}.npz', **run)


def start(args: argparse.Namespace, folder: pathlib.Path, processes: int, devices: int) -> None:
  """Runs the processes of one pod to their end.

  Raises:
    subprocess.CalledProcessError: one of them failed; the launcher has shown how.
  """
  folder.mkdir()
  own = [sys.executable, __file__, *sys.argv[1:], f'--work={folder}']
  launch = [sys.executable, LAUNCHER, f'--processes={processes}', f'--devices={devices}', f'--logs={folder}']
  environment = os.environ | {'JAX_ENABLE_COMPILATION_CACHE': 'false'}
  subprocess.run([*launch, '--', *own], env=environment, check=True, stdout=subprocess.DEVNULL)


def load(path: pathlib.Path) -> Run:
  with np.load(path, allow_pickle=False) as file:
    return dict(file)


def deviations(run: Run, expected: Run) -> tuple[float, float, float]:
  """(of the losses, of the parameters each to the largest of its array, of the parameters absolute)."""
  loss = np.abs(run['loss'] - expected['loss']).max() / np.abs(expected['loss']).max()
  names = [name for name in expected if name not in ('loss', WITHOUT_GRADIENT)]
  absolute = {name: np.abs(run[name] - expected[name]).max() for name in names}
  relative = max(absolute[name] / np.abs(expected[name]).max() for name in names)
  return float(loss), float(relative), float(max(absolute.values()))


def table(args: argparse.Namespace, folder: pathlib.Path) -> bool:
  """Prints the rows; whether all are within the tolerance."""
  print('| optimizer | devices | mesh | loss | parameters | parameters, absolute |')
  print('|---|---|---|---|---|---|')
  good = True
  for optimizer in args.optimizers.split(','):
    expected = load(folder / 'one device' / f'{optimizer}, one.npz')
    limit = OPTIMIZERS[optimizer][2]
    for pod, rows in {'one device': ONE_DEVICE, **dict.fromkeys(PODS, MESHES)}.items():
      for name in rows:
        if name == 'one':
          continue
        found = deviations(load(folder / pod / f'{optimizer}, {name}.npz'), expected)
        numbers = ' | '.join(f'{number:.1e}' for number in found)
        print(f'| {optimizer} | {pod} | {name} | {numbers} |')
        good &= all(deviation <= limit for deviation in found[:2])  # not so where it is NaN
    curve = expected['loss']
    print(f'{optimizer}: loss from {curve[0]:.3f} to {curve[-1]:.3f}, limit {limit:g}', file=sys.stderr)
  return good


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', default='digits', choices=SIZES)
  parser.add_argument('--optimizers', default='sgd', help='sgd, adam or both with a comma')
  parser.add_argument('--steps', type=int, default=20)
  parser.add_argument('--work', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.work:
    work(args)
    return 0
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    start(args, folder / 'one device', 1, 1)
    for pod, (processes, devices) in PODS.items():
      start(args, folder / pod, processes, devices)
    good = table(args, folder)
  print('All within the limits.' if good else 'Beyond a limit.', file=sys.stderr)
  return 0 if good else 1


if __name__ == '__main__':
  sys.exit(main())
