"""What an exported folder says of itself, in model.json: input, outputs, classes, preprocessing, origin."""

import dataclasses
import json
import pathlib
from typing import Any, Literal

from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation import files
from vit_jax.foundation.errors import UserError, first_line
from vit_jax.pretrained.base import Link

Input = Literal['images', 'tensor']
Precision = Literal['float32', 'float16', 'bfloat16', 'int8']
FILE = 'model.json'


@dataclasses.dataclass(frozen=True)
class Description:
  """The contents of model.json."""

  format: Literal['onnx', 'stablehlo']
  file: str  # the model's, in the same folder
  # 'images': uint8 (batch, height, width, channels) of any size; 'tensor': float32, as `preprocess` makes it.
  input: Input
  outputs: tuple[str, ...]
  precision: Precision
  preprocess: Preprocess
  classes: tuple[str, ...] | None  # the names of the probabilities; None: nobody names them
  num_classes: int
  link: Link  # whether the probabilities add up to one ('softmax') or stand alone ('sigmoid')
  architecture: str  # for people
  source: str  # the checkpoint
  license: str | None

  def write(self, folder: pathlib.Path) -> None:
    """Writes model.json."""
    text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
    files.write_text(folder / FILE, f'{text}\n')

  @classmethod
  def read(cls, folder: pathlib.Path) -> 'Description':
    """What `write` wrote; UserError where it is not there, or damaged."""
    try:
      values: dict[str, Any] = json.loads((folder / FILE).read_bytes())
      sized = {name: _tuples(value) for name, value in values['preprocess'].items()}
      values |= {'preprocess': Preprocess(**sized), 'outputs': tuple(values['outputs'])}
      values['classes'] = values['classes'] and tuple(values['classes'])
      return cls(**values)
    except FileNotFoundError as error:
      raise UserError(f'{folder} has no {FILE}; give a folder that vit_jax export has written.') from error
    except (OSError, ValueError, TypeError, KeyError) as error:
      raise UserError(f'{folder / FILE} is damaged ({first_line(error)}); export the model again.') from error

  def metadata(self) -> dict[str, str]:
    """The same as texts, for the metadata of a file."""
    values = dataclasses.asdict(self)
    return {
      name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
      for name, value in values.items()
      if value is not None
    }


def _tuples(value: Any) -> Any:
  return tuple(value) if isinstance(value, list) else value
