"""Converts a checkpoint: released .npz, training run and Hugging Face folder into one another.

vit_jax convert imagenet21k/ViT-B_16 runs/vit_b16 --format=run
vit_jax convert runs/mine mine.npz
vit_jax convert runs/mine mine_hf --format=hf
vit_jax convert runs/mine gs://bucket/mine.npz
vit_jax convert runs/mine mine_lora --format=peft
vit_jax convert runs/one runs/two runs/three soup --format=run --average

SRC is what `vit_jax.load` takes. A run is what `vit_jax.load` and config.init.checkpoint read again. DST may be in a
bucket, gs://… or s3://…
"""

import sys
from collections.abc import Sequence

from absl import flags

from vit_jax import cli
from vit_jax.foundation.errors import UserError

_FORMAT = flags.DEFINE_string(
  'format',
  None,
  'Of DST: npz (also where its name ends so), run, or a Hugging Face folder: vit, deit, dinov2, efficientnet, '
  'timm_efficientnet, timm, peft for the adapters of a run alone, or hf for the first of them that can hold the model.',
)
_ACTIVATION = flags.DEFINE_string(
  'activation', None, "Of an SRC that cannot tell, such as an .npz: 'gelu_tanh' or 'gelu'."
)
_NORM_EPSILON = flags.DEFINE_float('norm_epsilon', None, 'Of an SRC that cannot tell.')
_HEADS = flags.DEFINE_integer('heads', None, "Of an SRC that cannot tell, such as timm's.", lower_bound=1)
_WEIGHTS = cli.define_weights()
_AVERAGE = flags.DEFINE_bool(
  'average', False, 'Take the mean of the parameters of several SRC (arXiv 2203.05482).'
)


def main(arguments: Sequence[str]) -> None:
  """Reads SRC and writes DST; what DST does not hold as it was is said on stderr."""
  *sources, destination = arguments or ('',)
  if not sources or (len(sources) > 1 and not _AVERAGE.value):
    raise cli.missing_arguments(
      f'Name a checkpoint and what it becomes, which is two names and not {len(arguments)} (more with --average)'
    )
  from vit_jax.parallel import distributed
  from vit_jax.pretrained import average, bucket_output, formats

  name = _format_name(destination)
  distributed.skip_absent_tpu()
  with bucket_output.place_to_write(destination) as place:
    told = {flag.name: flag.value for flag in (_ACTIVATION, _NORM_EPSILON, _HEADS) if flag.value is not None}
    pretrained = formats.read(sources[0], told=told, weights=_WEIGHTS.value)
    if len(sources) > 1:
      others = (formats.read(source, told=told, weights=_WEIGHTS.value) for source in sources[1:])
      pretrained = average.of(pretrained, others)
    pretrained = formats.to_write(name, pretrained)
    writer, chosen = formats.written_by(name, pretrained)
    for note in chosen:
      print(note)
    notes = pretrained.notes + writer.write(pretrained, place)
  classes = pretrained.architecture.num_classes
  print(f'Wrote {destination}: {pretrained.num_parameters:,} parameters, {classes} classes.')
  for note in notes:
    print(note, file=sys.stderr)


def _format_name(destination: str) -> str:
  """What --format says, or the end of the destination's name; UserError where neither names a format."""
  from vit_jax.pretrained import foreign, formats

  foreign.refuse_to_write(destination)
  name, names = _FORMAT.value or formats.of_suffix(destination), formats.names_to_write()
  if name is None:
    raise UserError(
      f'{destination} may become a run or a Hugging Face folder; say --format=run or --format=hf.'
    )
  if name not in names:
    raise UserError(f'--format is {name!r}, which vit_jax does not write; choose one of {", ".join(names)}.')
  return name


if __name__ == '__main__':
  cli.run(main, positional=True)
