"""Latency of a deployed model: ours and transformers', by the runtimes that people deploy with, in alternating turns.

python benchmarks/deployed.py S/16 B/16 --batches=1,32 --seconds=20

Contenders: our jitted model, our ONNX in onnxruntime and in OpenVINO; transformers' ViT eager, by torch.compile, and
by torch.onnx (dynamo) in onnxruntime. All have random parameters, 224 pixels, 1,000 classes, float32, and inputs that
are prepared. One that is not installed is left out, which is said. A turn is one batch; contenders take turns until
each has had `--seconds`, so that all meet the same noise. It prints medians, and images/s by them.
"""

import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np
from absl import flags
from export_equality import MODELS, random_model

from vit_jax import export
from vit_jax.export import writing
from vit_jax.models.vit_sizes import VARIANTS

_BATCHES = flags.DEFINE_list('batches', ['1', '32'], 'Images in a batch.')
_SECONDS = flags.DEFINE_float('seconds', 20.0, 'Of each contender and batch.')
_THREADS = flags.DEFINE_integer('threads', 2, 'Of each runtime; XLA takes the cores of the process.')

Run = Callable[[], object]


def main() -> None:
  names = flags.FLAGS(sys.argv)[1:]
  for name in names:
    with tempfile.TemporaryDirectory() as scratch:
      folder = pathlib.Path(scratch)
      makers = contenders(name, folder)
      for batch in map(int, _BATCHES.value):
        images = np.random.default_rng(0).standard_normal((batch, 224, 224, 3), np.float32)
        runs = {title: make(images) for title, make in makers.items()}
        for title, seconds in measured(runs).items():
          print(
            f'{name} batch {batch:2d} {title:32s} {1e3 * seconds:9.1f} ms {batch / seconds:8.1f} images/s',
            flush=True,
          )


def measured(runs: dict[str, Run]) -> dict[str, float]:
  """The median seconds of each, of turns one after the other; the first two turns do not count."""
  times: dict[str, list[float]] = {title: [] for title in runs}
  for _ in range(2):
    for run in runs.values():
      run()
  while any(sum(spent) < _SECONDS.value for spent in times.values()):
    for title, run in runs.items():
      begun = time.perf_counter()
      run()
      times[title].append(time.perf_counter() - begun)
  return {title: statistics.median(spent) for title, spent in times.items()}


def contenders(name: str, folder: pathlib.Path) -> dict[str, Callable[[np.ndarray], Run]]:
  """What makes each contender for a batch of images (B, H, W, C)."""
  model = random_model(MODELS[name])
  writing.write(model, writing.Asked('onnx', 'tensor', 'float32', ('logits',), name), folder)
  session = export.Exported(folder, _THREADS.value)

  def jitted(images: np.ndarray) -> Run:
    return lambda: jax.block_until_ready(model(images))

  makers = {'ours, jit': jitted, 'ours, onnxruntime': lambda images: lambda: session.outputs(images)}
  for title, more in (('openvino', _openvino), ('transformers', _transformers)):
    try:
      makers |= more(name, folder)
    except ImportError as error:
      print(f'{title} is left out: {error}', file=sys.stderr)
  return makers


def _openvino(name: str, folder: pathlib.Path) -> dict[str, Callable[[np.ndarray], Run]]:
  import openvino

  compiled = openvino.Core().compile_model(
    folder / 'model.onnx', 'CPU', {'INFERENCE_NUM_THREADS': _THREADS.value, 'INFERENCE_PRECISION_HINT': 'f32'}
  )
  return {'ours, openvino': lambda images: lambda: compiled(images)}


def _transformers(name: str, folder: pathlib.Path) -> dict[str, Callable[[np.ndarray], Run]]:
  sys.modules.setdefault(
    'torchvision', None
  )  # not needed, and of another build than torch it stops the import
  import onnxruntime
  import torch
  from transformers import ViTConfig, ViTForImageClassification

  torch.set_num_threads(_THREADS.value)
  sizes = VARIANTS[name]
  config = ViTConfig(
    hidden_size=sizes.width,
    num_attention_heads=sizes.heads,
    num_hidden_layers=sizes.depth,
    intermediate_size=sizes.mlp_dim,
    patch_size=sizes.patch,
    num_labels=1000,
  )
  network = ViTForImageClassification(config).eval()
  path = folder / 'theirs.onnx'
  dynamic = {'pixel_values': {0: torch.export.Dim('batch')}}
  example = torch.zeros(2, 3, 224, 224)
  torch.onnx.export(network, (example,), dynamo=True, dynamic_shapes=dynamic, opset_version=20).save(
    str(path)
  )
  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads = _THREADS.value
  session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
  compiled = torch.compile(network)

  def of(function: Callable) -> Callable[[np.ndarray], Run]:
    def make(images: np.ndarray) -> Run:
      pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())

      def run() -> object:
        with torch.inference_mode():
          return function(pixels).logits

      return run

    return make

  def in_onnxruntime(images: np.ndarray) -> Run:
    pixels = images.transpose(0, 3, 1, 2).copy()
    return lambda: session.run(None, {'pixel_values': pixels})

  return {
    'transformers, eager': of(network),
    'transformers, torch.compile': of(compiled),
    'transformers, onnxruntime': in_onnxruntime,
  }


if __name__ == '__main__':
  main()
