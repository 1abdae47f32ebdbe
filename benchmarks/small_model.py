"""The step of a small model on one core: ours, Hugging Face's ViT on PyTorch, eager and compiled, and GEMM.

  pip install -e . && pip install torch==2.13.0 transformers
  python benchmarks/small_model.py

The model is that of configs/studies/poster.py: width 64, 4 blocks, 16 patches of 8 pixels, 128 images of 32 pixels
in memory, float32, AdamW, clipping. The peer has a class token, so 17 tokens instead of 16. Each contender is a process
with one thread; turns alternate (train_step.py). GEMM is a product of two 1,024 × 1,024 matrices in PyTorch: what
the core can do at most. 'loop' is our step whose blocks are not unrolled; 'given back' is ours where the C library
gives the memory of a step back to the kernel. FLOPs are counted, forward and backward, and those of our model.
"""

import argparse
import functools
import os
import statistics
from collections.abc import Callable

import train_step
from train_step import Contender

BATCH_SIZE = 128
GEMM_SIDE = 1024


def ours(*, keep: bool = True, loop: bool = False) -> Contender:
  """vit_jax's training step, as `train_step.ours` returns it.

  Args:
    keep: freed memory, as a command does.
    loop: over the blocks, which are unrolled in a run of this length.
  """
  if keep:
    from vit_jax import allocator

    allocator.keep_freed_memory()
  import jax
  import numpy as np

  from vit_jax.training.run import Dataset, Run

  program = Run(_config(loop=loop), Dataset(50_000, num_classes=10)).program
  step = program.step.lower(program.state, program.batch, {}).compile()
  state = program.init(np.uint32(0))
  rng = np.random.default_rng(0)
  batch = {
    'image': rng.integers(0, 256, program.batch['image'].shape, dtype=np.uint8),
    'label': rng.integers(0, 10, BATCH_SIZE).astype(np.int32),
  }
  batch = jax.tree.map(lambda x, leaf: jax.device_put(x, leaf.sharding), batch, program.batch)

  def run() -> None:
    nonlocal state
    state, _ = step(state, batch, {})
    jax.block_until_ready(state)

  return run, f'jax {jax.__version__}'


def peer(*, compiled: bool) -> Contender:
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
    num_labels=10,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
  )
  model = transformers.ViTForImageClassification(config).train()
  function = torch.compile(model) if compiled else model
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
  images = torch.randint(0, 256, (BATCH_SIZE, 3, 32, 32), dtype=torch.uint8)
  labels = torch.randint(0, 10, (BATCH_SIZE,))

  def run() -> None:
    optimizer.zero_grad()
    logits = function(images.float() / 127.5 - 1).logits
    torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

  return run, f'torch {torch.__version__}, transformers {transformers.__version__}'


def gemm() -> Contender:
  """The product of two matrices."""
  import torch

  torch.set_num_threads(1)
  matrix = torch.randn(GEMM_SIDE, GEMM_SIDE)
  return lambda: torch.mm(matrix, matrix), f'torch {torch.__version__}'


MAKERS: dict[str, Callable[[], Contender]] = {
  'eager': functools.partial(peer, compiled=False),
  'compiled': functools.partial(peer, compiled=True),
  'ours': ours,
  'loop': functools.partial(ours, loop=True),
  'given back': functools.partial(ours, keep=False),
  'gemm': gemm,
}
CONTENDERS = tuple(MAKERS)


def _config(*, loop: bool = False):
  from vit_jax import config, config_files

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
    return train_step.serve(*MAKERS[args.contender]())

  one_thread = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'NPROC': '1', 'OMP_NUM_THREADS': '1'}
  texts, seconds, peaks = train_step.take_turns(CONTENDERS, args.turns, args.steps, one_thread)
  medians = {name: statistics.median(times) for name, times in seconds.items()}
  peak = 2 * GEMM_SIDE**3 / medians['gemm']
  flops = 3 * BATCH_SIZE * _config().model.forward_flops(image_size=(32, 32), channels=3, num_classes=10)
  print(f'One core, medians of {args.turns} turns; GEMM: {peak / 1e9:.0f} GFLOP/s')
  for name in CONTENDERS[:-1]:
    rate = flops / medians[name]
    ratio = statistics.median(e / t for e, t in zip(seconds['eager'], seconds[name], strict=True))
    print(
      f'{name:10} {1e3 * medians[name]:.1f} ms, {BATCH_SIZE / medians[name]:,.0f} images/s, {ratio:.2f} × the '
      f'speed of eager, {rate / peak:.0%} of GEMM ({rate / 1e9:.0f} GFLOP/s); peak {peaks[name]} MiB; {texts[name]}'
    )


if __name__ == '__main__':
  main()
