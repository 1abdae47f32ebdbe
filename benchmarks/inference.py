"""`vit_jax.load(...)` and `model(images)` against the ViTs of transformers and timm on PyTorch, eager and compiled.

  pip install -e '.[huggingface]' && pip install torch==2.13.0 transformers
  python benchmarks/inference.py --variant=S/16 --batch_size=1
  python benchmarks/inference.py --contenders eager timm timm_compiled ours  # timm_vit.py says how to install timm

All have the same random weights, by folders of transformers and timm, and float32 images in memory. Each
contender is a process of its own, which classifies the batch some times whenever it is its turn. Turns
alternate. On a machine that does other work the ratios of processor time say more than those of wall clock.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import timm_vit
from transformers_vit import SIZES, config

CONTENDERS = ('eager', 'compiled', 'timm', 'timm_compiled', 'ours')


def ours(folder: str, images: np.ndarray) -> Callable[[], np.ndarray]:
  """The README's two lines, images prepared."""
  import vit_jax

  model = vit_jax.load(folder)
  return lambda: np.asarray(model(images))


def peer(name: str, images: np.ndarray, args: argparse.Namespace) -> Callable[[], np.ndarray]:
  """transformers.ViTForImageClassification or timm's ViT, both of which take channels first."""
  timm_vit.declare_torchvision_operators()
  import torch
  import transformers

  torch.set_num_threads(args.threads)
  of_timm = name.startswith('timm')
  if of_timm:
    model = timm_vit.create(args.variant, checkpoint_path=f'{args.folder}/timm/model.safetensors').eval()
  else:
    model = transformers.ViTForImageClassification.from_pretrained(args.folder).eval()
  function = torch.compile(model) if name.endswith('compiled') else model
  pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))

  def run() -> np.ndarray:
    with torch.inference_mode():
      output = function(pixels)
    return (output if of_timm else output.logits).numpy()

  return run


def save_random(variant: str, folder: str) -> None:
  """A folder with a model of transformers, and in its folder 'timm' the same for timm."""
  timm_vit.declare_torchvision_operators()
  import transformers

  transformers.ViTForImageClassification(config(variant)).save_pretrained(folder)
  preprocessor = transformers.ViTImageProcessor(size={'height': 224, 'width': 224})
  preprocessor.save_pretrained(folder)
  convert = [sys.executable, '-m', 'vit_jax.convert', folder, f'{folder}/timm', '--format=timm']
  subprocess.run(convert, check=True, stdout=subprocess.DEVNULL)


def work(name: str, args: argparse.Namespace) -> None:
  """The process of a contender: each line in is a number of calls, each line out their seconds."""
  images = np.random.default_rng(0).uniform(-1, 1, (args.batch_size, 224, 224, 3)).astype(np.float32)
  run = ours(args.folder, images) if name == 'ours' else peer(name, images, args)
  begin = time.perf_counter()
  logits = run()
  print(json.dumps({'first': time.perf_counter() - begin, 'logits': logits[0, :5].tolist()}), flush=True)
  run()
  for line in sys.stdin:
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(int(line)):
      run()
    taken = {'wall': time.perf_counter() - wall, 'processor': time.process_time() - processor}
    print(json.dumps({kind: seconds / int(line) for kind, seconds in taken.items()}), flush=True)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variant', default='S/16', choices=SIZES)
  parser.add_argument('--batch_size', type=int, default=1)
  parser.add_argument('--threads', type=int, default=2, help="PyTorch's")
  parser.add_argument('--turns', type=int, default=12)
  parser.add_argument('--calls', type=int, default=5, help='in a turn')
  default = [name for name in CONTENDERS if not name.startswith('timm')]
  parser.add_argument('--contenders', nargs='+', choices=CONTENDERS, default=default)
  parser.add_argument('--contender', choices=CONTENDERS, help=argparse.SUPPRESS)
  parser.add_argument('--folder', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contender:
    return work(args.contender, args)

  with tempfile.TemporaryDirectory() as folder:
    save_random(args.variant, folder)
    processes, told = {}, {}
    for name in args.contenders:
      command = [sys.executable, __file__, *sys.argv[1:], f'--contender={name}', f'--folder={folder}']
      processes[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
      told[name] = json.loads(processes[name].stdout.readline())
      np.testing.assert_allclose(told[name]['logits'], told[args.contenders[0]]['logits'], atol=1e-3)
    turns = []
    for _ in range(args.turns):
      turn = {}
      for name, process in processes.items():
        process.stdin.write(f'{args.calls}\n')
        process.stdin.flush()
        turn[name] = json.loads(process.stdout.readline())
      turns.append(turn)
    for process in processes.values():
      process.stdin.close()
      process.wait()

  print(f'{args.variant}, 224 px, batch {args.batch_size}, float32, medians of {args.turns} turns')
  for name in args.contenders:
    texts = []
    for kind in ('wall', 'processor'):
      median = statistics.median(turn[name][kind] for turn in turns)
      ratio = statistics.median(turn[args.contenders[0]][kind] / turn[name][kind] for turn in turns)
      texts.append(f'{kind} {1e3 * median:.1f} ms ({ratio:.2f} × the speed of {args.contenders[0]})')
    print(f'{name:13} {", ".join(texts)}; first call {told[name]["first"]:.1f} s')


if __name__ == '__main__':
  main()
