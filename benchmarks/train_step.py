"""Our training step against the ViTs of transformers and timm on PyTorch, eager and compiled.

  pip install -e . && pip install torch==2.13.0 transformers
  python benchmarks/train_step.py
  python benchmarks/train_step.py --contenders eager scanned unrolled  # ours without 'auto'
  python benchmarks/train_step.py --contenders timm timm_compiled ours  # timm_vit.py says how to install timm

Each contender is a process of its own, which builds its model and runs some steps whenever it is its turn.
Turns alternate, so that whatever else the machine does slows all of them. All train the same ViT with AdamW
and clipping, from images in memory, in float32 on the CPU.
"""

import argparse
import importlib.metadata
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import timm_vit
from transformers_vit import SIZES, config

PEERS = ('eager', 'compiled', 'timm', 'timm_compiled')
OURS: dict[str, dict[str, Any]] = {'ours': {}, 'scanned': {'unroll': False}, 'unrolled': {'unroll': True}}
CLASSES = 1000

Contender = tuple[Callable[[], None], str]


def ours(variant: str, batch_size: int, image_size: int, **options: Any) -> Contender:
  """vit_jax's training step, with options of the model.

  Returns:
    (a function that runs a step, a text about its compilation).
  """
  from vit_jax import allocator

  allocator.keep_freed_memory()  # as a command does
  import jax
  import numpy as np

  from vit_jax import config as c
  from vit_jax.training.run import Dataset, Run

  settings = c.Config(
    total='10000 steps',  # what is chosen for a run of hours
    batch_size=batch_size,
    model=c.ViTConfig(variant=variant, **options),
    data=c.DataConfig(image_size=(image_size, image_size)),
    optimizer=c.OptimizerConfig(weight_decay=0.1, clip_norm=1.0),
  )
  program = Run(settings, Dataset(1000, num_classes=CLASSES)).program
  begin = time.perf_counter()
  step = program.step.lower(program.state, program.batch).compile()
  seconds = time.perf_counter() - begin
  temporary = step.memory_analysis().temp_size_in_bytes / 2**20
  state = program.init(np.uint32(0))
  rng = np.random.default_rng(0)
  batch = {
    'image': rng.integers(0, 256, program.batch['image'].shape, dtype=np.uint8),
    'label': rng.integers(0, CLASSES, batch_size).astype(np.int32),
  }
  batch = jax.tree.map(lambda x, leaf: jax.device_put(x, leaf.sharding), batch, program.batch)

  def run() -> None:
    nonlocal state
    state, _ = step(state, batch)
    jax.block_until_ready(state)

  return run, f'compiled in {seconds:.1f} s, {temporary:.0f} MiB of temporaries'


def peer(name: str, args: argparse.Namespace) -> Contender:
  """The step of transformers.ViTForImageClassification or timm's ViT with torch.optim.AdamW; returns as `ours`."""
  timm_vit.declare_torchvision_operators()
  import torch
  import transformers

  torch.set_num_threads(args.threads)
  batch_size, image_size = args.batch_size, args.image_size
  if name.startswith('timm'):
    model = timm_vit.create(args.variant, img_size=image_size, act_layer='gelu_tanh').train()
    text = f'timm {importlib.metadata.version("timm")}'
  else:
    options = {'hidden_act': 'gelu_pytorch_tanh', 'image_size': image_size}
    model = transformers.ViTForImageClassification(config(args.variant, **options)).train()
    text = f'transformers {transformers.__version__}, {model.config._attn_implementation} attention'
  function = torch.compile(model) if name.endswith('compiled') else model
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
  images = torch.randint(0, 256, (batch_size, 3, image_size, image_size), dtype=torch.uint8)
  labels = torch.randint(0, CLASSES, (batch_size,))

  def run() -> None:
    optimizer.zero_grad()
    output = function(images.float() / 127.5 - 1)
    logits = output if isinstance(output, torch.Tensor) else output.logits
    torch.nn.functional.cross_entropy(logits, labels).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

  return run, f'torch {torch.__version__}, {text}'


def work(name: str, args: argparse.Namespace) -> None:
  """The process of a contender."""
  if name in OURS:
    serve(*ours(args.variant, args.batch_size, args.image_size, **OURS[name]))
  else:
    serve(*peer(name, args))


def serve(run: Callable[[], None], text: str) -> None:
  """Prints the text; then each line in is a turn of so many steps, each line out its seconds a step and peak MiB."""
  _time(run, 2)
  print(text, flush=True)
  for line in sys.stdin:
    seconds = _time(run, int(line))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f'{seconds} {peak:.0f}', flush=True)


def take_turns(
  names: Sequence[str], turns: int, steps: int, environment: Mapping[str, str] | None = None
) -> tuple[dict[str, str], dict[str, list[float]], dict[str, str]]:
  """Starts this script once more for each contender, by --contender=NAME, and lets them step in turn.

  Args:
    names: of the contenders.
    turns: of each.
    steps: in a turn.
    environment: of the processes; None: this one's.

  Returns:
    Each contender's text, its seconds a step in each turn, and its peak MiB.
  """
  processes, texts = {}, {}
  for name in names:  # one after the other, for compilation is timed too
    processes[name] = subprocess.Popen(
      [sys.executable, *sys.argv, f'--contender={name}'],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=environment,
    )
    texts[name] = processes[name].stdout.readline().strip()
  seconds, peaks = {name: [] for name in names}, {}
  for _ in range(turns):
    for name, process in processes.items():
      process.stdin.write(f'{steps}\n')
      process.stdin.flush()
      taken, peaks[name] = process.stdout.readline().split()
      seconds[name].append(float(taken))
  for process in processes.values():
    process.stdin.close()
    process.wait()
  return texts, seconds, peaks


def _time(run: Callable[[], None], steps: int) -> float:
  """Seconds a step."""
  begin = time.perf_counter()
  for _ in range(steps):
    run()
  return (time.perf_counter() - begin) / steps


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variant', default='S/16', choices=SIZES)
  parser.add_argument('--batch_size', type=int, default=8)
  parser.add_argument('--image_size', type=int, default=224)
  parser.add_argument('--threads', type=int, default=2, help="PyTorch's")
  parser.add_argument('--turns', type=int, default=15)
  parser.add_argument('--steps', type=int, default=2, help='in a turn')
  names = (*PEERS, *OURS)
  parser.add_argument('--contenders', nargs='+', choices=names, default=['eager', 'compiled', 'ours'])
  parser.add_argument('--contender', choices=names, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contender:
    return work(args.contender, args)

  texts, seconds, peaks = take_turns(args.contenders, args.turns, args.steps)
  print(f'{args.variant}, {args.image_size} px, batch {args.batch_size}, float32, {args.turns} turns')
  medians = {name: statistics.median(times) for name, times in seconds.items()}
  for name, times in seconds.items():
    ratio = statistics.median(p / t for p, t in zip(seconds[args.contenders[0]], times, strict=True))
    rate = args.batch_size / medians[name]
    print(
      f'{name:13} median {medians[name]:.3f} s, lowest {min(times):.3f} s, {rate:.2f} images/s, {ratio:.2f} × '
      f'the speed of {args.contenders[0]}; peak {peaks[name]} MiB; {texts[name]}'
    )


if __name__ == '__main__':
  main()
