"""The training steps of other ViTs in JAX beside ours, compiled for a TPU slice that need not be here.

  python benchmarks/peers_tpu.py --big_vision=CHECKOUT --vision_transformer=CHECKOUT --topologies=v3-128,v5e:8x8
  python benchmarks/peers_tpu.py --big_vision=CHECKOUT --variants=L/16 --contenders=ours,big_vision_fsdp --blocks=2
  python benchmarks/peers_tpu.py --flax=CHECKOUT --variants=L/16 --topologies=v5e:8x8 --contenders=ours,flax_fsdp

A checkout is a clone of google-research/big_vision, google-research/vision_transformer, google/flax or
AI-Hypercomputer/maxtext; nothing is fetched, and a contender without its checkout is left out. Each program is compiled
in a process of its own by this host's libtpu, and timed by our plan's estimate (vit_jax/plan/timing.py): nothing is
measured. A program of whole depth takes minutes. With --blocks all models have so many blocks, for a rehearsal.

Up to the liberties that each file of benchmarks/peers/ names, all train the same ViT on a batch of 4,096 images of
224 px, with Adam (bfloat16 first moments), clipping and the sigmoid loss of JFT's 18,291 classes, or with
--recipe=imagenet21k with dropout of 0.1, a tanh layer before the head and 21,843 classes.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from peers import big_vision, flax_nnx, maxtext, ours, vision_transformer
from peers.program import RECIPES
from several import several

# (checkout, variant, recipe, blocks, devices) -> the lowered program and its mesh
Lower = Callable[..., tuple[Any, Any]]


class Contender(NamedTuple):
  """`checkout`: the flag that names the clone; '': none is needed. `lower`: its file's function."""

  checkout: str
  lower: Lower


CONTENDERS = {
  'ours': Contender('', ours.lower),
  'big_vision_fsdp': Contender('big_vision', functools.partial(big_vision.lower, fsdp=True)),
  'big_vision_replicated': Contender('big_vision', functools.partial(big_vision.lower, fsdp=False)),
  'vision_transformer': Contender('vision_transformer', vision_transformer.lower),
  'flax_fsdp': Contender('flax', functools.partial(flax_nnx.lower, fsdp=True)),
  'flax_replicated': Contender('flax', functools.partial(flax_nnx.lower, fsdp=False)),
  'maxtext': Contender('maxtext', maxtext.lower),
}
# Flag -> a folder by which its clone is recognised.
CHECKOUTS = {
  'big_vision': 'big_vision',
  'vision_transformer': 'vit_jax',
  'flax': 'docs_nnx/examples',
  'maxtext': 'src/maxtext',
}


@dataclasses.dataclass(frozen=True)
class Row:
  """A contender's estimate: seconds of a step, of which it waits for others; GiB on a device, None if unknown."""

  contender: str
  variant: str
  topology: str
  step: float | None
  waiting: float | None
  gib: float
  compile_seconds: float


def compile_one(args: argparse.Namespace) -> Row:
  """The work of a process: one contender on one topology."""
  from vit_jax.plan import topology

  contender, variant, name = args.contenders[0], args.variants[0], args.topologies[0]
  machine = topology.describe(name)
  folder, lower = CONTENDERS[contender]
  clone = getattr(args, folder) if folder else ''
  lowered, mesh = lower(clone, variant, RECIPES[args.recipe], args.blocks, machine.devices)
  step, waiting, gib, seconds = estimate(lowered, list(mesh.devices.flat), machine.kind)
  return Row(contender, variant, name, step, waiting, gib, seconds)


def estimate(lowered: Any, devices, kind: str):
  """Seconds of a step, seconds of it without work, GiB, seconds of compiling; the first two None if too large."""
  import time

  import jax

  from vit_jax.parallel import hardware
  from vit_jax.plan import hlo, planner, timing

  known = hardware.of(kind)
  assert known, kind
  begin = time.perf_counter()
  try:
    compiled, text = hlo.compile_and_print(lowered)
  except jax.errors.JaxRuntimeError as error:
    found = planner.needed_and_available(str(error))
    if found is None:
      raise
    return None, None, found[0] / 2**30, time.perf_counter() - begin
  seconds = time.perf_counter() - begin
  result = timing.estimate(hlo.parse(text), devices, known)
  memory = compiled.memory_analysis()
  total = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
  return result.seconds, result.exposed, (total - memory.alias_size_in_bytes) / 2**30, seconds


def rows(args: argparse.Namespace) -> Iterator[Row]:
  """One after the other, each from a process of its own."""
  for variant in args.variants:
    for name in args.topologies:
      for contender in args.contenders:
        folder = CONTENDERS[contender].checkout
        if folder and not getattr(args, folder):
          print(f'{contender} is left out: --{folder} names no checkout.', file=sys.stderr)
          continue
        one = [f'--variants={variant}', f'--topologies={name}', f'--contenders={contender}', '--one']
        done = subprocess.run([sys.executable, *sys.argv, *one], stdout=subprocess.PIPE, text=True)
        if done.returncode:
          sys.exit(f'{contender} was not compiled; the error is above.')
        yield Row(**json.loads(done.stdout.splitlines()[-1]))


def checkout(package: str) -> Callable[[str], str]:
  """The type of a flag: a folder with that package."""

  def check(path: str) -> str:
    if not (pathlib.Path(path) / package).is_dir():
      raise argparse.ArgumentTypeError(
        f'{path} has no folder {package}; clone the repository and name the clone.'
      )
    return path

  return check


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  names = lambda text: text.split(',')
  for name, package in CHECKOUTS.items():
    parser.add_argument(f'--{name}', type=checkout(package), help=f'a clone, which has a folder {package}')
  parser.add_argument('--variants', type=names, default=['L/16', 'H/14'])
  parser.add_argument('--topologies', type=names, default=['v3-128', 'v5e:8x8'])
  parser.add_argument('--contenders', type=several(CONTENDERS), default=list(CONTENDERS))
  parser.add_argument('--recipe', choices=RECIPES, default='jft')
  parser.add_argument('--blocks', type=int, help='of every model; by default as many as it has')
  parser.add_argument('--one', action='store_true', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.one:
    print(json.dumps(dataclasses.asdict(compile_one(args))))
    return
  print(
    '| variant | slice | contender | step, ms | waiting, ms | GiB | compiled in |\n|---|---|---|---|---|---|---|'
  )
  for row in rows(args):
    step, waiting = (f'{1e3 * x:.1f}' if x is not None else 'too large' for x in (row.step, row.waiting))
    cells = (
      row.variant,
      row.topology,
      row.contender,
      step,
      waiting,
      f'{row.gib:.1f}',
      f'{row.compile_seconds:.0f} s',
    )
    print(f'| {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
  main()
