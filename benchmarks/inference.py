"""`vit_jax.load(...)` and `model(images)`, and what we export, against the ViTs of transformers and timm on PyTorch.

  pip install -e '.[export]' && pip install torch==2.13.0 transformers onnxscript openvino
  python benchmarks/inference.py --variant=S/16 --batch_size=1
  python benchmarks/inference.py --contenders eager timm timm_compiled ours  # timm_vit.py says how to install timm

'onnx' and 'openvino' are our ONNX in onnxruntime and in OpenVINO, 'their_onnx' is transformers' model by torch.onnx
(dynamo) in onnxruntime. All have the same random weights, by folders of transformers and timm, and float32 images in
memory. Each contender is a process of its own, which classifies the batch some times whenever it is its turn
(contenders.py). On a machine that does other work the ratios of processor time say more than those of wall clock.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import contenders
import numpy as np
import timm_vit
from transformers_vit import SIZES, config

CONTENDERS = ('eager', 'compiled', 'timm', 'timm_compiled', 'ours', 'onnx', 'openvino', 'their_onnx')
PRECISIONS = {'float32': 'f32', 'bfloat16': 'bf16'}  # as OpenVINO calls them
TOLERANCES = {'float32': 1e-3, 'bfloat16': 5e-2}  # between the contenders' logits


def ours(images: np.ndarray, args: argparse.Namespace) -> Callable[[], np.ndarray]:
  """The README's two lines, images prepared."""
  import vit_jax

  model = vit_jax.load(args.folder, dtype=args.dtype)
  return lambda: np.asarray(model(images))


def exported(name: str, images: np.ndarray, args: argparse.Namespace) -> Callable[[], np.ndarray]:
  """Our ONNX of prepared images, 'onnx' in onnxruntime or in 'openvino'."""
  if name == 'openvino':
    import openvino
  from vit_jax import export

  out = f'{args.folder}/{name}'
  command = [sys.executable, '-m', 'vit_jax.export', args.folder, out]
  flags = ['--format=onnx', '--input=tensor', '--outputs=logits']
  subprocess.run([*command, *flags], check=True, stdout=subprocess.DEVNULL)
  if name == 'onnx':
    model = export.read(out, args.threads)
    return lambda: model.outputs(images)['logits']
  options = {'INFERENCE_NUM_THREADS': args.threads, 'INFERENCE_PRECISION_HINT': PRECISIONS[args.dtype]}
  compiled = openvino.Core().compile_model(f'{out}/model.onnx', 'CPU', options)
  return lambda: compiled(images)['logits']


def peer(name: str, images: np.ndarray, args: argparse.Namespace) -> Callable[[], np.ndarray]:
  """transformers.ViTForImageClassification, or timm's ViT, on PyTorch or as ONNX; all of them take channels first."""
  timm_vit.declare_torchvision_operators()
  import torch

  torch.set_num_threads(args.threads)
  of_timm = name.startswith('timm')
  if of_timm:
    model = timm_vit.create(args.variant, checkpoint_path=f'{args.folder}/timm/model.safetensors').eval()
  else:
    import transformers

    model = transformers.ViTForImageClassification.from_pretrained(args.folder).eval()
  pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
  if name == 'their_onnx':
    return in_onnxruntime(model, pixels, args)
  function = torch.compile(model) if name.endswith('compiled') else model

  def run() -> np.ndarray:
    with torch.inference_mode(), torch.autocast('cpu', torch.bfloat16, enabled=args.dtype == 'bfloat16'):
      output = function(pixels)
    return (output if of_timm else output.logits).float().numpy()

  return run


def in_onnxruntime(model: Any, pixels: Any, args: argparse.Namespace) -> Callable[[], np.ndarray]:
  """A model of transformers as torch.onnx writes it, for batches of any size."""
  import onnxruntime
  import torch

  path = f'{args.folder}/theirs.onnx'
  dynamic = {'pixel_values': {0: torch.export.Dim('batch')}}
  # Of two images: one would make its batch a number of the graph.
  torch.onnx.export(
    model, (pixels.new_zeros(2, *pixels.shape[1:]),), path, dynamo=True, dynamic_shapes=dynamic
  )
  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = args.threads
  session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
  return lambda: session.run(None, {'pixel_values': pixels.numpy()})[0]


def save_random(variant: str, folder: str) -> None:
  """A folder with a model of transformers, and in its folder 'timm' the same for timm.

  Raises:
    SystemExit: with a sentence where transformers or PyTorch is missing, which make the weights of all contenders.
  """
  try:
    timm_vit.declare_torchvision_operators()
    import transformers
  except ModuleNotFoundError as error:
    sys.exit(f'There is no {error.name}, which makes the weights of all contenders; install it.')

  transformers.ViTForImageClassification(config(variant)).save_pretrained(folder)
  preprocessor = transformers.ViTImageProcessor(size={'height': 224, 'width': 224})
  preprocessor.save_pretrained(folder)
  convert = [sys.executable, '-m', 'vit_jax.convert', folder, f'{folder}/timm', '--format=timm']
  subprocess.run(convert, check=True, stdout=subprocess.DEVNULL)


def made(name: str, args: argparse.Namespace) -> tuple[Mapping[str, Any], contenders.Work]:
  """A contender as `contenders.serve` takes it; its figures are seconds of a call, on the clock and of processors."""
  images = np.random.default_rng(0).uniform(-1, 1, (args.batch_size, 224, 224, 3)).astype(np.float32)
  if name == 'ours':
    run = ours(images, args)
  else:
    run = (exported if name in ('onnx', 'openvino') else peer)(name, images, args)
  begin = time.perf_counter()
  logits = run()
  hello = {'first': time.perf_counter() - begin, 'logits': logits[0, :5].tolist()}
  run()

  def work(calls: int) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(calls):
      run()
    return {
      'wall': (time.perf_counter() - wall) / calls,
      'processor': (time.process_time() - processor) / calls,
    }

  return hello, work


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variant', default='S/16', choices=SIZES)
  parser.add_argument('--batch_size', type=int, default=1)
  parser.add_argument('--threads', type=int, default=2, help="of each runtime; XLA takes the process's cores")
  parser.add_argument(
    '--dtype', default='float32', choices=TOLERANCES, help='of products; onnxruntime keeps to float32'
  )
  parser.add_argument('--turns', type=int, default=12)
  parser.add_argument('--calls', type=int, default=5, help='in a turn')
  default = [name for name in CONTENDERS if not name.startswith('timm')]
  parser.add_argument('--contenders', nargs='+', choices=CONTENDERS, default=default)
  parser.add_argument('--contender', choices=CONTENDERS, help=argparse.SUPPRESS)
  parser.add_argument('--folder', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contender:
    return contenders.serve(lambda: made(args.contender, args))

  with tempfile.TemporaryDirectory() as folder:
    save_random(args.variant, folder)
    own = [sys.executable, __file__, *sys.argv[1:], f'--folder={folder}']
    started = contenders.start({name: [*own, f'--contender={name}'] for name in args.contenders})
    first, *_ = started
    for contender in started.values():
      np.testing.assert_allclose(
        contender.hello['logits'], started[first].hello['logits'], atol=TOLERANCES[args.dtype]
      )
    turns = contenders.take_turns(started, args.turns, args.calls)
  if turns:
    print(f'{args.variant}, 224 px, batch {args.batch_size}, {args.dtype}, medians of {len(turns)} turns')
    for name, contender in started.items():
      texts = []
      for kind in ('wall', 'processor'):
        times = turns.each(name, kind)
        ratio = statistics.median(p / t for p, t in zip(turns.each(first, kind), times, strict=True))
        texts.append(f'{kind} {1e3 * statistics.median(times):.1f} ms ({ratio:.2f} × the speed of {first})')
      print(f'{name:13} {", ".join(texts)}; first call {contender.hello["first"]:.1f} s')
    if disagreement := turns.disagreement('wall'):
      print(disagreement)
  if turns.ended:
    sys.exit(turns.ended)


if __name__ == '__main__':
  main()
