"""Time and memory of loading a released checkpoint: onto one device, and into a sharded training state.

  pip install -e .
  python benchmarks/load_checkpoint.py --variants=B/16,L/16,H/14,R50+L/32

It writes files with random weights, in float32 and in the released naming, to a temporary folder, and reads
each in a process of its own. Memory is the peak of the process's resident set, less what it was before, as a
multiple of the file: 1 is the model itself, and what is above 1 is needed to load it.
"""

import argparse
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

MIB = 2**20


def write(variant: str, path: pathlib.Path) -> None:
  """A file with random weights of a named model at 224 px."""
  import numpy as np

  from vit_jax import config as c
  from vit_jax.data.preprocess import Preprocess
  from vit_jax.foundation import pytrees
  from vit_jax.models.base import Architecture
  from vit_jax.pretrained.base import FORMATS, Pretrained

  architecture = Architecture(
    c.ViTConfig(variant=variant).resolved(), (224, 224), channels=3, num_classes=1000
  )
  rng = np.random.default_rng(0)
  params = {name: rng.standard_normal(leaf.shape, np.float32) for name, leaf in architecture.shapes().items()}
  pretrained = Pretrained(architecture, pytrees.unflatten(params), Preprocess(architecture.image_size))
  FORMATS['npz']().write(pretrained, path)


def load(path: pathlib.Path) -> None:
  """`vit_jax.load`, as in a notebook."""
  import vit_jax

  vit_jax.load(path)


def fine_tune(path: pathlib.Path) -> None:
  """What a training run does at step 0, on eight devices with a part of every parameter each.

  Frozen parameters have no optimizer state, which would take as much memory as the model.
  """
  import jax

  from vit_jax import config as c
  from vit_jax.pretrained import formats
  from vit_jax.training.initialization import initial_state, read_initial
  from vit_jax.training.run import Dataset, Run

  config = c.Config(
    total='10 steps',
    batch_size=8,
    model=formats.architecture(path).model.for_classification(),
    init=c.InitConfig(checkpoint=str(path)),
    data=c.DataConfig(image_size=(224, 224)),
    optimizer=c.OptimizerConfig(name='sgd', momentum=0.0, freeze=('^(blocks|stem)',)),
    mesh=c.MeshConfig(fsdp=8),
  )
  run = Run(config, Dataset(100, num_classes=1000))
  arrays, _ = read_initial(config, run.architecture, run.dataset.class_names)
  jax.block_until_ready(initial_state(run.program, 0, arrays))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variants', default='B/16,L/16,H/14,R50+L/32')
  parser.add_argument('--how', choices=('write', 'load', 'fine_tune'), help=argparse.SUPPRESS)
  parser.add_argument('--path', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.how == 'write':
    return write(args.variants, pathlib.Path(args.path))
  if args.how:
    return measure(load if args.how == 'load' else fine_tune, pathlib.Path(args.path))

  with tempfile.TemporaryDirectory() as folder:
    for variant in args.variants.split(','):
      path = pathlib.Path(folder, re.sub(r'\W', '_', variant) + '.npz')
      run('write', path, variant, devices=1)
      size = path.stat().st_size / MIB
      for how, devices in (('load', 1), ('fine_tune', 8)):
        seconds, memory = map(float, run(how, path, variant, devices).split())
        print(
          f'{variant:9} file {size:6.0f} MiB, {how:9} on {devices} devices: {seconds:5.1f} s, peak '
          f'{memory:6.0f} MiB = {memory / size:.2f} × the file',
          flush=True,
        )
      path.unlink()


def run(how: str, path: pathlib.Path, variant: str, devices: int) -> str:
  """Runs this file in a process of its own; returns the last line that it prints."""
  environment = dict(os.environ, XLA_FLAGS=f'--xla_force_host_platform_device_count={devices}')
  command = [sys.executable, __file__, f'--how={how}', f'--path={path}', f'--variants={variant}']
  output = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
  return output.strip().splitlines()[-1] if output.strip() else ''


def measure(function: Callable[[pathlib.Path], None], path: pathlib.Path) -> None:
  """Prints the seconds and MiB that a function takes."""
  import jax.numpy as jnp

  import vit_jax.loading  # noqa: F401
  import vit_jax.training.initialization  # noqa: F401 (imports are not what is measured)

  jnp.zeros(1).block_until_ready()
  before = peak()
  begin = time.perf_counter()
  function(path)
  print(f'{time.perf_counter() - begin} {peak() - before}')


def peak() -> float:
  """The highest resident set of this process so far, in MiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == '__main__':
  main()
