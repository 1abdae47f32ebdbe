"""Exports a checkpoint to run elsewhere: ONNX for servers, phones and browsers, or StableHLO for plain JAX.

vit_jax export runs/mine out/ --format=onnx
vit_jax export runs/mine out/ --format=onnx --input=tensor --dtype=float16 --outputs=probabilities,embeddings
vit_jax export hf:facebook/dinov2-small out/ --format=onnx --outputs=embeddings,features
vit_jax export runs/mine out/ --format=stablehlo

CHECKPOINT is what `vit_jax.load` takes. OUT is a folder; it gets the model, model.json (input, outputs, classes,
preprocessing, origin) and, of ONNX, index.html: a page that classifies photos in the browser. An ONNX model takes
uint8 images of any size and prepares them itself; with --input=tensor, and as StableHLO, it takes what
`model.preprocess` gives. What is written is compared with the checkpoint's own model before the command ends.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from vit_jax import cli
from vit_jax.foundation import files
from vit_jax.foundation.errors import UserError

_FORMAT = flags.DEFINE_enum('format', None, ['onnx', 'stablehlo'], 'Format to write.')
_INPUT = flags.DEFINE_enum(
  'input',
  None,
  ['images', 'tensor'],
  "Input: uint8 images of any size, which the model prepares (ONNX's default), or what model.preprocess gives.",
)
_DTYPE = flags.DEFINE_enum(
  'dtype',
  'float32',
  ['float32', 'float16', 'bfloat16'],
  'Number format of parameters and products; norms and softmax stay in float32. ONNX has float16, StableHLO bfloat16.',
)
_OUTPUTS = flags.DEFINE_list(
  'outputs',
  [],
  'Outputs: probabilities (B, K), logits (B, K), embeddings (B, D), features (B, N, D), attention (L, B, H, N, N); by '
  'default probabilities, or embeddings where the checkpoint has no head.',
)
_INT8 = flags.DEFINE_string(
  'int8', None, 'Folder of images by which kernels and activations of an ONNX model are quantised to 8 bits.'
)
_CLASSES = cli.define_classes()
_LICENSE = flags.DEFINE_string('license', None, 'License of the model, such as apache-2.0, for its metadata.')
_WEIGHTS = cli.define_weights()
# The 16-bit floats of a format: onnxruntime multiplies no bfloat16 on processors, and TPUs no float16.
_HALVES = {'onnx': 'float16', 'stablehlo': 'bfloat16'}


def main(arguments: Sequence[str]) -> None:
  """Writes OUT, and says how it compares with the model."""
  if len(arguments) != 2:
    raise cli.missing_arguments(
      f'Name a checkpoint and the folder that it goes to, which is two names and not {len(arguments)}'
    )
  kind, (source, destination) = cli.required(_FORMAT), arguments
  folder = cli.local_path('out', destination)
  if kind == 'stablehlo' and (_INPUT.value == 'images' or _INT8.value):
    raise UserError('StableHLO takes what model.preprocess gives, in floats; leave --input and --int8 out.')
  if _DTYPE.value not in ('float32', _HALVES[kind]):
    raise UserError(f'--format={kind} has no --dtype={_DTYPE.value}; say --dtype={_HALVES[kind]}.')
  if _INT8.value and _DTYPE.value != 'float32':
    raise UserError(f'--int8 makes 8 bits of float32; leave --dtype={_DTYPE.value} out.')
  from vit_jax.data.image_files import image_files
  from vit_jax.export import libraries

  libraries.check(kind)
  calibration = image_files([_INT8.value]) if _INT8.value else []
  from vit_jax.export import check, inference, writing
  from vit_jax.loading import load

  model = load(source, weights=_WEIGHTS.value, classes=_CLASSES.value)
  model.squash('An exported model')
  outputs = inference.checked_outputs(model, _OUTPUTS.value or ())
  files.make_directories(folder)
  given: Any = _INPUT.value or ('images' if kind == 'onnx' else 'tensor')
  asked: dict[str, Any] = {'format': kind, 'input': given, 'precision': _DTYPE.value, 'outputs': outputs}
  size = writing.write(model, folder, **asked, source=source, license=_LICENSE.value)
  print(f'Wrote {destination}: {model.config.describe()}, {size / 1e6:,.1f} MB.')
  print(check.compared(model, folder))
  if _INT8.value:
    from vit_jax.export import int8

    del model
    print(int8.quantise(folder, calibration, _INT8.value))


if __name__ == '__main__':
  cli.run(main, positional=True)
