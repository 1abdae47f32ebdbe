"""Time from the command to the first step, with an empty cache of compiled programs and with a filled one.

  python benchmarks/start_up.py
  python benchmarks/start_up.py --devices=8

Each start is the real command, with the paper's B/16 at 224 px, fully sharded over the fake CPU devices if there are
several, and a batch of 8 images of a folder of 64 JPEGs of 400 × 300 pixels. It is killed once it has logged its
first step. A cold start finds an empty cache directory, a warm one what the cold start before it left there. A first
start, which brings Python's files into memory, is not measured. 'processor' is processor time over all cores, which
depends less on what else the machine does.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image

ROOT = pathlib.Path(__file__).parents[1]
COMMAND = [
  *(sys.executable, '-u', '-m', 'vit_jax.main', '--config=configs/vit_b16.py:jft'),
  *('--config.data.split=train', '--config.batch_size=8'),
  *('--config.total=2 steps', '--config.schedule.warmup=0 steps', '--config.log_every=1 steps'),
]
IMAGES = 64
# The beginning of the line that a run prints at the end of each part of its start.
PARTS = {'built': 'Devices:', 'compiled': 'Memory per device', 'first step': 'step 1/2:'}


def start(folder: pathlib.Path, devices: int) -> dict[str, float]:
  """Seconds from the command to the end of each part, and processor seconds; the cache is in `folder`."""
  mesh = ('--config.mesh.data=1', f'--config.mesh.fsdp={devices}')
  environment = dict(
    os.environ,
    JAX_PLATFORMS='cpu',
    XLA_FLAGS=f'--xla_force_host_platform_device_count={devices}',
    XDG_CACHE_HOME=str(folder),
    PYTHONPATH=str(ROOT),
  )
  shutil.rmtree(folder / 'run', ignore_errors=True)
  begin = time.perf_counter()
  process = subprocess.Popen(
    [*COMMAND, *mesh, f'--config.data.source=folder:{folder / "images"}', f'--workdir={folder / "run"}'],
    cwd=ROOT,
    env=environment,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
  )
  seconds, lines = {}, []
  for line in process.stdout:
    lines.append(line)
    seconds |= {part: time.perf_counter() - begin for part, text in PARTS.items() if line.startswith(text)}
    if 'first step' in seconds:
      process.kill()
      break
  _, _, usage = os.wait4(process.pid, 0)
  if seconds.keys() != PARTS.keys():
    sys.exit(''.join(lines))
  return seconds | {'processor': usage.ru_utime + usage.ru_stime}


def write_images(folder: pathlib.Path) -> None:
  """JPEGs of two classes, coloured gradients."""
  rows, columns = np.mgrid[:300, :400]
  for number in range(IMAGES):
    pixels = np.stack([rows + 3 * number, columns // 2, rows + columns], axis=-1) % 256
    path = folder / 'ab'[number % 2] / f'{number}.jpg'
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--turns', type=int, default=3, help='of one cold and one warm start')
  parser.add_argument('--devices', type=int, default=1, help='simulated on the CPU')
  args = parser.parse_args()
  measured = {'cold': [], 'warm': []}
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    write_images(folder / 'images')
    start(folder, args.devices)
    for turn in range(args.turns):
      shutil.rmtree(folder / 'vit_jax')
      for kind, starts in measured.items():
        starts.append(start(folder, args.devices))
        told = ', '.join(f'{part} {seconds:.1f} s' for part, seconds in starts[-1].items())
        print(f'turn {turn + 1}, {kind}: {told}; load {os.getloadavg()[0]:.1f}', flush=True)
    kept = [path.stat().st_size for path in (folder / 'vit_jax' / 'xla').glob('*-cache')]
  print(f'Medians of {args.turns} turns, B/16, devices: {args.devices} on {os.cpu_count()} cores:')
  for part in (*PARTS, 'processor'):
    cold, warm = (statistics.median(seconds[part] for seconds in starts) for starts in measured.values())
    print(f'{part:10}  cold {cold:5.1f} s  warm {warm:5.1f} s  warm / cold {warm / cold:.2f}')
  print(f'Kept: {len(kept)} programs, {sum(kept) / 2**20:.1f} MiB')


if __name__ == '__main__':
  main()
