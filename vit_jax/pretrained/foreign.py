"""Files of other projects: what each is, and the one line that makes of it what vit_jax reads."""

import os
import pathlib
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from vit_jax.foundation.errors import UserError

# Run with the files of a model and the .safetensors file that they become.
_TORCH = (
  'import sys, torch, safetensors.torch as s; d = {}; '
  "[d.update(torch.load(f, 'cpu', weights_only=True)) for f in sys.argv[1:-1]]; "
  "d = d.get('model', d.get('state_dict', d)); "
  's.save_file({k: v.clone().contiguous() for k, v in d.items() if torch.is_tensor(v)}, sys.argv[-1], '
  "{'format': 'pt'})"
)
# Likewise with the one file that an earlier transformers wrote by Flax.
_FLAX = (
  'import sys, flax, numpy, safetensors.numpy as s; '
  "d = flax.serialization.msgpack_restore(open(sys.argv[1], 'rb').read()); "
  "s.save_file({k.replace('.kernel', '.weight').replace('.scale', '.weight'): numpy.ascontiguousarray("
  "v.transpose(3, 2, 0, 1) if v.ndim == 4 else v.T if k.endswith('.kernel') else v) "
  "for k, v in flax.traverse_util.flatten_dict(d, sep='.').items()}, sys.argv[2], {'format': 'pt'})"
)


# With its folder, which an earlier transformers wrote by TensorFlow.
_TENSORFLOW = (
  'import sys, transformers as t; '
  't.AutoModelForImageClassification.from_pretrained(sys.argv[1], from_tf=True).save_pretrained(sys.argv[1])'
)


class _Kind(NamedTuple):
  """A kind of file, the program that converts it and the packages which that needs."""

  title: str
  program: str = ''
  needs: str = ''


_PICKLE = _Kind('a PyTorch pickle (it could run code)', _TORCH, 'PyTorch and safetensors')
_KERAS = _Kind('a file of Keras', _TENSORFLOW, 'transformers<4.50, TensorFlow and PyTorch')
# By how their names end, in the order in which they are looked for in a folder.
_KINDS = {
  **dict.fromkeys(('.bin', '.pth', '.pt', '.ckpt'), _PICKLE),
  '.msgpack': _Kind('a file of Flax', _FLAX, 'Flax and safetensors'),
  **dict.fromkeys(('.h5', '.hdf5', '.keras'), _KERAS),
  '.gguf': _Kind('a file of llama.cpp'),
  '.onnx': _Kind('an ONNX file'),
  '.tflite': _Kind('a file of LiteRT'),
}


def refuse(source: str | os.PathLike[str]) -> None:
  """Raises UserError for the path or address of another project's file, with the line that converts it."""
  source = os.fspath(source)
  path = pathlib.Path(source.rpartition('/')[2] if '://' in source else source)
  if path.suffix.lower() in _KINDS:
    raise UserError(f'{source} is {_sentence([path])}')


def among(names: Sequence[str]) -> list[str]:
  """Those of the names of files that are of another project's kind, in the order of the kinds."""
  return [name for suffix in _KINDS for name in names if name.lower().endswith(suffix)]


def refuse_folder(folder: pathlib.Path) -> None:
  """As `refuse`, for a folder whose tensors lie in such files, or that another program wrote by Orbax."""
  if any(next(folder.glob(f'{below}_METADATA'), None) for below in ('', '*/', '*/*/')):
    raise UserError(
      f'{folder} is an Orbax checkpoint of another program, which alone knows what its arrays are; have it write the '
      "model as a folder of transformers (of jimm's models, model.save_pretrained(folder) does)."
    )
  for suffix in _KINDS:
    found = sorted(folder.glob(f'pytorch_model*{suffix}')) or sorted(folder.glob(f'*{suffix}'))[:1]
    if found:
      raise UserError(f'{folder} holds its tensors in {found[0].name}, {_sentence(found)}')


def refuse_to_write(destination: str) -> None:
  """Raises UserError where a file that is to be written is called as another project's."""
  kind = _KINDS.get(pathlib.Path(destination).suffix.lower())
  if kind is not None:
    raise UserError(
      f'{destination} would be {kind.title}, which vit_jax does not write; choose another name and --format.'
    )


def _sentence(paths: list[pathlib.Path]) -> str:
  """What files of a kind are, and what to do."""
  kind, folder = _KINDS[paths[0].suffix.lower()], paths[0].parent
  what = f'{kind.title}, which vit_jax does not read'
  if not kind.program:
    return f'{what}; use the checkpoint that it was made from.'
  result = folder / f'{paths[0].stem}.safetensors'
  if (folder / 'config.json').is_file():  # which says what the tensors are
    result = folder / 'model.safetensors'
  made = folder if result.stem == 'model' else result
  arguments = [*paths, result]
  if kind is _KERAS:
    made, arguments = folder, [folder]
  command = f'python -c "{kind.program}" {shlex.join(map(str, arguments))}'
  return f'{what}; where {kind.needs} are installed, {command} makes {made} a checkpoint that it reads.'
