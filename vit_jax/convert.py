"""Converts a checkpoint: released .npz, training run and Hugging Face folder into one another.

python -m vit_jax.convert imagenet21k/ViT-B_16 runs/vit_b16 --format=run
python -m vit_jax.convert runs/mine mine.npz
python -m vit_jax.convert runs/mine mine_hf --format=hf

SRC is what `vit_jax.load` takes. A run is what `vit_jax.load` and config.init.checkpoint read again.
"""

import sys
from collections.abc import Sequence

from absl import flags

from vit_jax import cli
from vit_jax.errors import UserError

_FORMATS = ('npz', 'run', 'hf', 'vit', 'deit', 'dinov2', 'timm')

_FORMAT = flags.DEFINE_enum(
  'format',
  None,
  _FORMATS,
  'Of DST: npz (if its name ends so), run, or a Hugging Face folder (hf, or its kind).',
)
_NAMING = flags.DEFINE_enum(
  'naming', '2020', ['2020', 'linen'], "Of an .npz: that of the released files, or Linen's."
)
_GELU = flags.DEFINE_enum('gelu', None, ['tanh', 'erf'], 'Of an SRC that cannot tell, such as an .npz.')
_NORM_EPSILON = flags.DEFINE_float('norm_epsilon', None, 'Of an SRC that cannot tell.')


def main(arguments: Sequence[str]) -> None:
  if len(arguments) != 2:
    raise UserError(
      f'Usage: python -m vit_jax.convert SRC DST [--format=…]; {len(arguments)} names were given.'
    )
  source, destination = arguments
  kind = _FORMAT.value or ('npz' if destination.endswith('.npz') else None)
  if kind is None:
    raise UserError(
      f'{destination} may become a run or a Hugging Face folder; say --format=run or --format=hf.'
    )
  from vit_jax.parallel import distributed
  from vit_jax.pretrained import formats

  distributed.skip_absent_tpu()
  portable = formats.read(source, gelu=_GELU.value, norm_epsilon=_NORM_EPSILON.value)
  notes = portable.notes + _write(portable, destination, kind)
  print(f'Wrote {destination}: {_numbers(portable)} parameters, {portable.num_classes} classes.')
  for note in notes:
    print(note, file=sys.stderr)


def _write(portable, destination: str, kind: str) -> tuple[str, ...]:
  """Writes a format; sentences on what it could not hold."""
  from vit_jax.pretrained import released, runs

  if kind == 'npz':
    return released.write(portable, destination, naming=_NAMING.value)
  if kind == 'run':
    runs.write(portable, destination)
    return ()
  from vit_jax.pretrained import huggingface  # needs an extra

  return huggingface.write(portable, destination, kind=None if kind == 'hf' else kind)


def _numbers(portable) -> str:
  from vit_jax import pytrees

  return f'{sum(array.size for array in pytrees.flatten(portable.params).values()):,}'


if __name__ == '__main__':
  cli.run(main, positional=True)
