"""The same training on every mesh: how far losses and parameters deviate from those of one device.

  python benchmarks/mesh_equality.py
  python benchmarks/mesh_equality.py --data=cifar10 --optimizers=sgd,adam
  python benchmarks/mesh_equality.py --models=efficientnet

The trainer's own step trains a small model in float32 on its own batches, with everything random switched on
(crops, RandAugment, mirroring, mixup, CutMix, dropout, attention dropout, drop path): on one device, then on
each mesh of eight devices, of one, two and four processes (`launch/local_pod.py`). All of them compute the
same sums in another order, so that they differ by rounding, which training magnifies. The row 'last bit' says
by how much: it is one device again, with each initial parameter replaced by the next float32 number up or
down. It prints a table of the largest deviations; the exit code is 1 if one is beyond the limit.

Running statistics of batch norm are compared as parameters are, and both absolutely: of what batch norm has centred,
whole arrays are nearly zero. Batch norm normalises each part of an accumulated batch by itself, so that those rows are
compared with one device that accumulates too.
"""

import argparse
import dataclasses
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
from several import several

from vit_jax import config as c
from vit_jax.models.base import ModelConfig

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
# size of the gradient, so that rounding counts as much in small gradients as in large ones: ten times more.
OPTIMIZERS = {
  'sgd': (c.OptimizerConfig(name='sgd', weight_decay=0.1, clip_norm=1.0), 0.1, 2e-5),
  'adam': (c.OptimizerConfig(weight_decay=0.1, clip_norm=1.0), 1e-3, 2e-4),
}
MODELS = ('vit', 'efficientnet')
BATCH_NORM_LIMIT = 2e-6  # absolute
# Zero except for rounding. Shifting all keys does not change the softmax, nor the shift of a channel what the next
# batch norm gives; and what one batch norm centred has the mean zero in the next.
ROUNDING = re.compile(
  r'blocks/attention/key/bias|stage\d/(first|others)/(project_norm/bias|expand_norm/mean)|top_norm/mean'
)

Outcome = dict[str, np.ndarray]  # 'loss' of every step, and the last parameters and state by path


def model_of(name: str, patch: int) -> ModelConfig:
  """A small model of a kind."""
  if name == 'efficientnet':
    return c.EfficientNetConfig(
      variant='custom', width_multiplier=0.25, depth_multiplier=0.1, dropout=0.1, stochastic_depth=0.2
    )
  return c.ViTConfig(
    variant='custom',
    patch=patch,
    width=64,
    mlp_dim=128,
    depth=3,
    heads=8,
    dropout=0.1,
    attention_dropout=0.1,
    stochastic_depth=0.2,
  )


def config_of(model: str, data: str, optimizer: str, steps: int, settings: dict[str, int]) -> c.Config:
  """The config of a row; `settings` are axes of the mesh, and the accumulation."""
  side, channels, patch = SIZES[data]
  chosen, rate, _ = OPTIMIZERS[optimizer]
  if model == 'efficientnet':
    side = 32  # its last feature map has a 32nd of the rows
    rate /= 10  # at more the loss rises, and rounding with it
  axes = {axis: size for axis, size in settings.items() if axis != 'accumulation'}
  return c.Config(
    total=f'{steps} steps',
    batch_size=32,
    accumulation=settings.get('accumulation', 1),
    model=model_of(model, patch),
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


def train(config: c.Config, *, nudged: bool = False) -> Outcome:
  """Losses, last parameters and state of a run over all devices of all processes; `nudged`: the row 'last bit'."""
  import jax
  from jax.experimental import multihost_utils

  from vit_jax.data.pipeline import TrainPipeline
  from vit_jax.foundation import pytrees
  from vit_jax.parallel.mesh import batch_sharding
  from vit_jax.training.run import open_training

  run, source = open_training(config)
  program, sharding = run.program, batch_sharding(run.mesh)
  pipeline = TrainPipeline(
    source, config.data, batch_size=config.batch_size, seed=config.seed, sharding=sharding
  )
  state = program.init(np.uint32(config.seed))
  if nudged:
    state = state._replace(params=jax.tree.map(_next_numbers, state.params))
  loss = []
  for step in range(run.timeline.total):
    state, metrics = program.step(state, pipeline.batch(step))
    loss.append(float(metrics['train/loss']))
  whole = multihost_utils.process_allgather(state.variables, tiled=True)
  variables = {path: np.asarray(leaf) for path, leaf in pytrees.flatten(whole).items()}
  return {'loss': np.array(loss)} | variables


def _next_numbers(leaf):
  """Replaces each element by the next float32 number up or down, at random."""
  import jax

  up = np.random.default_rng(0).random(leaf.shape) < 0.5
  return jax.device_put(np.nextafter(leaf, np.where(up, np.inf, -np.inf).astype(leaf.dtype)), leaf.sharding)


def work(args: argparse.Namespace) -> None:
  """The work of a process of a pod: all rows for as many devices; the first process saves them."""
  from vit_jax.parallel import distributed

  distributed.initialize()
  import jax

  rows = MESHES if jax.device_count() > 1 else ONE_DEVICE
  for model, optimizer in runs(args):
    for name, settings in rows.items():
      outcome = train(config_of(model, args.data, optimizer, args.steps, settings), nudged=name == 'last bit')
      if jax.process_index() == 0:
        np.savez(pathlib.Path(args.work) / f'{model}, {optimizer}, {name}.npz', **outcome)


def runs(args: argparse.Namespace) -> list[tuple[str, str]]:
  """The models and optimizers that are asked for."""
  return list(itertools.product(args.models, args.optimizers))


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


def load(path: pathlib.Path) -> Outcome:
  """An outcome that a process of a pod has saved."""
  with np.load(path, allow_pickle=False) as file:
    return dict(file)


def deviations(outcome: Outcome, expected: Outcome) -> tuple[float, float, float]:
  """The largest deviations of losses, of parameters relative to the largest of their array, and absolute."""
  loss = np.abs(outcome['loss'] - expected['loss']).max() / np.abs(expected['loss']).max()
  names = [name for name in expected if name != 'loss' and not ROUNDING.fullmatch(name)]
  absolute = {name: np.abs(outcome[name] - expected[name]).max() for name in names}
  relative = max(absolute[name] / np.abs(expected[name]).max() for name in names)
  return float(loss), float(relative), float(max(absolute.values()))


def table(args: argparse.Namespace, folder: pathlib.Path) -> bool:
  """Prints the rows; returns whether all are within their limits."""
  print('| model | optimizer | devices | mesh | loss | parameters | parameters, absolute |')
  print('|---|---|---|---|---|---|---|')
  good = True
  for model, optimizer in runs(args):
    normalised = model == 'efficientnet'
    limit = BATCH_NORM_LIMIT if normalised else OPTIMIZERS[optimizer][2]
    rows_by_pod = {'one device': ONE_DEVICE, **dict.fromkeys(PODS, MESHES)}
    for pod, rows in rows_by_pod.items():
      for name in rows:
        reference = 'accumulation 4' if normalised and name.endswith('accumulation 4') else 'one'
        if name in ('one', reference):
          continue
        expected = load(folder / 'one device' / f'{model}, {optimizer}, {reference}.npz')
        loss, relative, absolute = deviations(
          load(folder / pod / f'{model}, {optimizer}, {name}.npz'), expected
        )
        print(f'| {model} | {optimizer} | {pod} | {name} | {loss:.1e} | {relative:.1e} | {absolute:.1e} |')
        good &= loss <= limit and (absolute if normalised else relative) <= limit  # False for NaN
    curve = load(folder / 'one device' / f'{model}, {optimizer}, one.npz')['loss']
    print(
      f'{model}, {optimizer}: loss from {curve[0]:.3f} to {curve[-1]:.3f}, limit {limit:g}', file=sys.stderr
    )
  return good


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', default='digits', choices=SIZES)
  parser.add_argument(
    '--models', type=several(MODELS), default=MODELS, help='vit, efficientnet or both with a comma'
  )
  parser.add_argument(
    '--optimizers', type=several(OPTIMIZERS), default=['sgd'], help='sgd, adam or both with a comma'
  )
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
