"""Attention by XLA against a fused kernel, forward and backward.

  python benchmarks/attention.py                 for TPUs that are not here, by the compiler's estimate
  python benchmarks/attention.py --kinds=gpu     on a GPU: cuDNN and XLA timed in turns

It compiles the attention of a block with its four projections, with B/16's heads in bfloat16, so that a
change of layout that a kernel needs counts too. For TPUs (this needs libtpu) the compiler estimates the
cycles of XLA's program, and of a kernel it writes down the schedule (vit_jax/plan/kernels.py).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

TOKENS = (50, 128, 197, 257, 401, 577, 785, 1025, 2305, 4097)
KINDS = ('v3', 'v4', 'v5e', 'v5p', 'v6e', 'tpu7x')
_SHAPES = dict.fromkeys(('v4', 'v5p', 'tpu7x'), '1x1x1')


def block(implementation: str, args: argparse.Namespace, devices):
  """Attention, forward and backward, on the first of the devices.

  Returns:
    (jitted function: parameters, tokens, gradient of the result -> result, gradients; its arguments' shapes).
  """
  import jax
  import jax.numpy as jnp
  from flax import nnx

  from vit_jax import config as c
  from vit_jax.models.parts.attention import Attention, How
  from vit_jax.parallel import mesh as mesh_lib

  sharding = mesh_lib.batch_sharding(mesh_lib.make_mesh(c.MeshConfig(), devices[:1]))
  width = args.heads * args.head_size
  options = {'dtype': jnp.bfloat16, 'how': How(implementation, sharding=sharding)}
  attention = nnx.eval_shape(lambda: Attention(width, args.heads, **options, rngs=nnx.Rngs(0)))
  graphdef, params = nnx.split(attention)

  def run(params, x, grad):
    out, backward = jax.vjp(lambda params, x: nnx.merge(graphdef, params)(x, x), params, x)
    return out, backward(grad)

  def place(leaf):
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=mesh_lib.replicated(sharding.mesh))

  tokens = place(jax.ShapeDtypeStruct((args.batch_size, args.tokens[0], width), jnp.bfloat16))
  return jax.jit(run), (jax.tree.map(place, params), tokens, tokens)


def compile_one(implementation: str, args: argparse.Namespace) -> dict[str, float]:
  """The work of a process: microseconds and MiB of temporaries on a TPU."""
  os.environ |= {'JAX_PLATFORMS': 'cpu', 'JAX_ENABLE_COMPILATION_CACHE': 'false'}
  from vit_jax.parallel import hardware
  from vit_jax.plan import hlo, timing, topology

  kind = args.kinds[0]
  machine = topology.describe(f'{kind}:{_SHAPES.get(kind, "1x1")}')
  known = hardware.of(machine.kind)
  run, shapes = block(implementation, args, machine.devices)
  compiled, text = hlo.compile_and_print(run.lower(*shapes))
  estimate = timing.estimate(hlo.parse(text), machine.devices[:1], known)
  if estimate.unknown:
    raise RuntimeError(f'the compiler wrote down no schedule of {estimate.unknown:.0f} kernels')
  return {
    'kernels': estimate.kernels * 1e6,
    'other': (estimate.seconds - estimate.kernels) * 1e6,
    'temporaries': compiled.memory_analysis().temp_size_in_bytes / 2**20,
  }


def by_the_compiler(args: argparse.Namespace) -> None:
  """Prints a row for each kind of TPU and number of tokens; each program is compiled in its own process."""
  print('| | tokens | XLA | temporaries | auto: kernels + rest | temporaries | auto / XLA |')
  print('|---|---|---|---|---|---|---|')
  for kind in args.kinds:
    for tokens in args.tokens:
      found = {}
      for implementation in ('xla', 'auto'):
        command = [sys.executable, __file__, f'--kinds={kind}', f'--tokens={tokens}']
        command += [f'--{name}={getattr(args, name)}' for name in ('batch_size', 'heads', 'head_size')]
        done = subprocess.run([*command, f'--one={implementation}'], capture_output=True, text=True)
        if done.returncode:
          error = [line for line in done.stderr.splitlines() if 'rror' in line][-1:]
          print(f'{kind}, {tokens} tokens, {implementation}: {error}', file=sys.stderr)
          continue
        found[implementation] = json.loads(done.stdout.splitlines()[-1])
      print(row(kind, tokens, **found), flush=True)


def row(kind: str, tokens: int, xla: dict | None = None, auto: dict | None = None) -> str:
  """A row of the table; None: this program does not compile."""
  cells = [kind, f'{tokens:,}']
  for found in (xla, auto):
    if found:
      kernels = f'{found["kernels"]:,.0f} + ' if found['kernels'] else ''
      cells += [f'{kernels}{found["other"]:,.0f} µs', f'{found["temporaries"]:,.0f} MiB']
    else:
      cells += ['does not compile', '–']
  both = xla and auto and (auto['kernels'] + auto['other']) / xla['other']
  return f'| {" | ".join([*cells, f"{both:.2f}" if both else "–"])} |'


def _random(leaf):
  import jax

  return jax.device_put(0.1 * jax.random.normal(jax.random.key(0), leaf.shape, leaf.dtype), leaf.sharding)


def in_turns(args: argparse.Namespace) -> None:
  """Times cuDNN and XLA in turns on the GPU of this host."""
  import jax
  import jax.numpy as jnp

  print('| tokens | XLA | temporaries | cuDNN | temporaries | cuDNN / XLA |\n|---|---|---|---|---|---|')
  for tokens in args.tokens:
    one = argparse.Namespace(**(vars(args) | {'tokens': [tokens]}))
    programs, memory, seconds = {}, {}, {'xla': [], 'cudnn': []}
    for name in seconds:
      run, shapes = block(name, one, jax.devices())
      programs[name] = run.lower(*shapes).compile()
      memory[name] = programs[name].memory_analysis().temp_size_in_bytes / 2**20
    inputs = jax.tree.map(_random, shapes)
    outputs = [jax.block_until_ready(program(*inputs))[0] for program in programs.values()]
    distance = float(abs(jnp.subtract(*outputs)).max() / abs(outputs[0]).max())
    if distance > 0.05:
      raise RuntimeError(f'{tokens} tokens: the results differ by {distance:.3f} of the largest')
    for _ in range(args.turns):
      for name, program in programs.items():
        begin = time.perf_counter()
        for _ in range(20):
          result = program(*inputs)
        jax.block_until_ready(result)
        seconds[name].append((time.perf_counter() - begin) / 20)
    ratio = statistics.median(c / x for c, x in zip(seconds['cudnn'], seconds['xla'], strict=True))
    cells = [
      f'{statistics.median(times) * 1e6:,.0f} µs | {memory[name]:,.0f} MiB' for name, times in seconds.items()
    ]
    print(f'| {tokens:,} | {" | ".join(cells)} | {ratio:.2f} |', flush=True)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--kinds', type=lambda text: text.split(','), default=KINDS, help="of TPUs, or 'gpu'")
  parser.add_argument('--tokens', type=lambda t: [int(n) for n in t.split(',')], default=TOKENS)
  parser.add_argument('--batch_size', type=int, default=8)
  parser.add_argument('--heads', type=int, default=12)
  parser.add_argument('--head_size', type=int, default=64)
  parser.add_argument('--turns', type=int, default=15)
  parser.add_argument('--one', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.one:
    print(json.dumps(compile_one(args.one, args)))
  elif args.kinds == ['gpu']:
    in_turns(args)
  else:
    by_the_compiler(args)


if __name__ == '__main__':
  main()
