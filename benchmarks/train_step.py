r"""Our training step against the ViTs of transformers and timm on PyTorch, eager and compiled.

  pip install -e . && pip install torch==2.13.0 transformers
  python benchmarks/train_step.py
  python benchmarks/train_step.py --contenders eager scanned unrolled  # ours without 'auto'
  python benchmarks/train_step.py --contenders timm timm_compiled ours  # timm_vit.py says how to install timm

Each contender is a process of its own, which builds its model and runs some steps whenever it is its turn
(contenders.py); one whose library is not here is left out. All train the same ViT with AdamW and clipping, from
images in memory. On an NVIDIA GPU --peak_tflops=989, its peak, adds the share of it that the model's products use
(MFU).

  python benchmarks/train_step.py --device=cuda --dtype=bfloat16 --variant=L/16 --batch_size=128 \
    --contenders timm_compiled xla ours
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import statistics
import sys
from collections.abc import Callable
from typing import Any

import contenders
import timm_vit
import training_steps
from training_steps import Step
from transformers_vit import SIZES, config

PEERS = ('eager', 'compiled', 'timm', 'timm_compiled')
OURS: dict[str, dict[str, Any]] = {
  'ours': {},
  'scanned': {'unroll': False},
  'unrolled': {'unroll': True},
  'xla': {'attention': 'xla'},
}
CLASSES = 1000


def ours(variant: str, batch_size: int, image_size: int, **options: Any) -> Step:
  """vit_jax's training step, with options of the model."""

  def settings():
    from vit_jax import config as c

    return c.Config(
      total='10000 steps',  # what is chosen for a run of hours
      batch_size=batch_size,
      model=c.ViTConfig(variant=variant, **options),
      data=c.DataConfig(image_size=(image_size, image_size)),
      optimizer=c.OptimizerConfig(weight_decay=0.1, clip_norm=1.0),
    )

  return training_steps.ours(settings, images=1000, classes=CLASSES)


def step_flops(args: argparse.Namespace) -> float:
  """Floating-point operations of a step, forwards and backwards."""
  from vit_jax.models.base import Architecture
  from vit_jax.models.flops import TRAINING
  from vit_jax.models.vit_config import ViTConfig

  size = (args.image_size, args.image_size)
  return TRAINING * args.batch_size * Architecture(ViTConfig(args.variant), size, 3, CLASSES).forward_flops()


def peer(name: str, args: argparse.Namespace) -> Step:
  """The step of transformers.ViTForImageClassification or timm's ViT with torch.optim.AdamW."""
  timm_vit.declare_torchvision_operators()
  import torch

  torch.set_num_threads(args.threads)
  if name.startswith('timm'):
    model = timm_vit.create(args.variant, img_size=args.image_size, act_layer='gelu_tanh')
    text = f'timm {importlib.metadata.version("timm")}'
  else:
    import transformers

    options = {'hidden_act': 'gelu_pytorch_tanh', 'image_size': args.image_size}
    model = transformers.ViTForImageClassification(config(args.variant, **options))
    text = f'transformers {transformers.__version__}, {model.config._attn_implementation} attention'
  step = training_steps.peer(
    model,
    compiled=name.endswith('compiled'),
    batch_size=args.batch_size,
    image_size=args.image_size,
    classes=CLASSES,
    weight_decay=0.1,
    device=args.device,
    bfloat16=args.dtype == 'bfloat16',
  )
  return dataclasses.replace(step, text=f'{step.text}, {text}')


def maker(name: str, args: argparse.Namespace) -> Callable[[], Step]:
  """What makes the step of a contender."""
  if name in OURS:
    options = {**OURS[name], 'dtype': args.dtype}
    return functools.partial(ours, args.variant, args.batch_size, args.image_size, **options)
  return functools.partial(peer, name, args)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variant', default='S/16', choices=SIZES)
  parser.add_argument('--batch_size', type=int, default=8)
  parser.add_argument('--image_size', type=int, default=224)
  parser.add_argument('--threads', type=int, default=2, help="PyTorch's")
  parser.add_argument('--device', default='cpu', choices=('cpu', 'cuda'))
  parser.add_argument(
    '--dtype', default='float32', choices=('float32', 'bfloat16'), help='of products; parameters are float32'
  )
  parser.add_argument('--peak_tflops', type=float, help="the device's, for MFU")
  parser.add_argument('--turns', type=int, default=15)
  parser.add_argument('--steps', type=int, default=2, help='in a turn')
  names = (*PEERS, *OURS)
  parser.add_argument('--contenders', nargs='+', choices=names, default=['eager', 'compiled', 'ours'])
  parser.add_argument('--contender', choices=names, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contender:
    return contenders.serve(lambda: training_steps.timed(maker(args.contender, args)()))

  own = [sys.executable, *sys.argv]
  started = contenders.start({name: [*own, f'--contender={name}'] for name in args.contenders})
  turns = contenders.take_turns(started, args.turns, args.steps)
  if turns:
    print(f'{args.variant}, {args.image_size} px, batch {args.batch_size}, {args.dtype}, {len(turns)} turns')
    teraflops = step_flops(args) / 1e12 if args.peak_tflops else 0.0
    first, *_ = started
    for name, contender in started.items():
      times = turns.each(name, 'seconds')
      median = statistics.median(times)
      ratio = statistics.median(p / t for p, t in zip(turns.each(first, 'seconds'), times, strict=True))
      share = f', MFU {teraflops / median / args.peak_tflops:.1%}' if args.peak_tflops else ''
      print(
        f'{name:13} median {median:.4f} s, lowest {min(times):.4f} s, {args.batch_size / median:.2f} images/s{share}, '
        f'{ratio:.2f} × the speed of {first}; peak {turns.each(name, "peak")[-1]:.0f} MiB; {contender.hello["text"]}'
      )
    if disagreement := turns.disagreement('seconds'):
      print(disagreement)
  if turns.ended:
    sys.exit(turns.ended)


if __name__ == '__main__':
  main()
