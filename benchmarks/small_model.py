"""The step of a small model on one core: ours, Hugging Face's ViT on PyTorch, eager and compiled, and GEMM.

  pip install -e . && pip install torch==2.13.0 transformers
  python benchmarks/small_model.py

The model is that of configs/studies/poster.py: width 64, 4 blocks, 16 patches of 8 pixels, 128 images of 32 pixels
in memory, float32, AdamW, clipping. The peer has a class token, so 17 tokens instead of 16. Each contender is a process
with one thread; turns alternate (contenders.py). GEMM is a product of two 1,024 × 1,024 matrices in PyTorch: what
the core can do at most. 'loop' is our step whose blocks are not unrolled; 'given back' is ours where the C library
gives the memory of a step back to the kernel. FLOPs are counted, forward and backward, and those of our model.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import sys
from collections.abc import Callable

import contenders
import training_steps
from training_steps import Step

BATCH_SIZE = 128
CLASSES = 10
GEMM_SIDE = 1024


def ours(*, keep: bool = True, loop: bool = False) -> Step:
  """vit_jax's training step.

  Args:
    keep: freed memory, as a command does.
    loop: over the blocks, which are unrolled in a run of this length.
  """
  make = functools.partial(_config, loop=loop)
  return training_steps.ours(make, images=50_000, classes=CLASSES, keep=keep)


def peer(*, compiled: bool) -> Step:
  """transformers.ViTForImageClassification with torch.optim.AdamW."""
  import torch
  import transformers

  torch.set_num_threads(1)
  config = transformers.ViTConfig(
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=192,
    hidden_act='gelu_pytorch_tanh',
    image_size=32,
    patch_size=8,
    num_labels=CLASSES,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
  )
  step = training_steps.peer(
    transformers.ViTForImageClassification(config),
    compiled=compiled,
    batch_size=BATCH_SIZE,
    image_size=32,
    classes=CLASSES,
    weight_decay=0.05,
    label_smoothing=0.1,
  )
  return dataclasses.replace(step, text=f'{step.text}, transformers {transformers.__version__}')


def gemm() -> Step:
  """The product of two matrices."""
  import torch

  torch.set_num_threads(1)
  matrix = torch.randn(GEMM_SIDE, GEMM_SIDE)
  return Step(lambda: torch.mm(matrix, matrix), f'torch {torch.__version__}')


MAKERS: dict[str, Callable[[], Step]] = {
  'eager': functools.partial(peer, compiled=False),
  'compiled': functools.partial(peer, compiled=True),
  'ours': ours,
  'loop': functools.partial(ours, loop=True),
  'given back': functools.partial(ours, keep=False),
  'gemm': gemm,
}
CONTENDERS = tuple(MAKERS)


def _config(*, loop: bool = False):
  from vit_jax import config
  from vit_jax.options import config_files

  values = config_files.load('locality:plain,small')
  values.update_from_flattened_dict({'model.patch': 8, 'batch_size': BATCH_SIZE, 'total': '40 epochs'})
  if loop:
    values.model.unroll = False
  return config.from_config_dict(values)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--turns', type=int, default=15)
  parser.add_argument('--steps', type=int, default=10, help='in a turn')
  parser.add_argument('--contender', choices=CONTENDERS, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contender:
    return contenders.serve(lambda: training_steps.timed(MAKERS[args.contender]()))

  one_thread = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'NPROC': '1', 'OMP_NUM_THREADS': '1'}
  own = [sys.executable, *sys.argv]
  started = contenders.start({name: [*own, f'--contender={name}'] for name in CONTENDERS}, one_thread)
  turns = contenders.take_turns(started, args.turns, args.steps)
  if turns:
    _print(turns, {name: contender.hello['text'] for name, contender in started.items()})
    if disagreement := turns.disagreement('seconds'):
      print(disagreement)
  if turns.ended:
    sys.exit(turns.ended)


def _print(turns: contenders.Turns, texts: dict[str, str]) -> None:
  """A line for each contender but GEMM, which tells what share of it they do, if it is here."""
  medians = {name: statistics.median(turns.each(name, 'seconds')) for name in texts}
  peak = 2 * GEMM_SIDE**3 / medians['gemm'] if 'gemm' in medians else None
  from vit_jax.models.base import Architecture

  flops = 3 * BATCH_SIZE * Architecture(_config().model, (32, 32), 3, CLASSES).forward_flops()
  print(f'One core, medians of {len(turns)} turns' + (f'; GEMM: {peak / 1e9:.0f} GFLOP/s' if peak else ''))
  first, *_ = texts
  for name, text in texts.items():
    if name == 'gemm':
      continue
    rate = flops / medians[name]
    pairs = zip(turns.each(first, 'seconds'), turns.each(name, 'seconds'), strict=True)
    ratio = statistics.median(e / t for e, t in pairs)
    share = f'{rate / peak:.0%} of GEMM ({rate / 1e9:.0f} GFLOP/s)' if peak else f'{rate / 1e9:.0f} GFLOP/s'
    print(
      f'{name:10} {1e3 * medians[name]:.1f} ms, {BATCH_SIZE / medians[name]:,.0f} images/s, {ratio:.2f} × the '
      f'speed of {first}, {share}; peak {turns.each(name, "peak")[-1]:.0f} MiB; {text}'
    )


if __name__ == '__main__':
  main()
