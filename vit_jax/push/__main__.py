"""Pushes a checkpoint to the Hugging Face Hub, with a card that says what it is and how it was trained.

vit_jax push runs/mine hf:me/model
vit_jax push runs/mine folder/ --license=apache-2.0
vit_jax push runs/mine hf:me/model@branch --private --format=timm --message='Twice the epochs'

SRC is what `vit_jax.load` takes. DST is a repository, which is made if it is not there, or a folder, which gets the
same files to be looked at first. They hold the model for transformers or timm, and a card, README.md, which replaces
the one that is there: data, recipe, metrics and curves as far as a run has them. `hf auth login`, or the variable
HF_TOKEN, says who you are.
"""

import pathlib
import shutil
import sys
import tempfile
from collections.abc import Sequence

from absl import flags

from vit_jax import cli
from vit_jax.foundation import files, hub
from vit_jax.foundation.errors import UserError

_FORMAT = flags.DEFINE_string(
  'format',
  None,
  'A kind of Hugging Face folder; hf for the first that can hold the model, its adapters merged; peft for the adapters '
  'alone. Without: peft where the base of a run with an adapter is on the Hub, otherwise hf.',
)
_PRIVATE = flags.DEFINE_bool('private', False, 'Make a repository that nobody else sees.')
_LICENSE = flags.DEFINE_string('license', None, 'License of the model, such as apache-2.0, for the card.')
_MESSAGE = flags.DEFINE_string('message', None, 'The message of the commit.')
_WEIGHTS = cli.define_weights()


def main(arguments: Sequence[str]) -> None:
  """Writes SRC and its card, and uploads them where DST is on the Hub."""
  if len(arguments) != 2:
    raise cli.missing_arguments(
      f'Name a checkpoint and where it goes, which is two names and not {len(arguments)}'
    )
  source, destination = arguments
  address = hub.address_of(destination)
  if address.file if address else '://' in destination:
    raise UserError(f'{destination} is neither a repository nor a folder; write hf:org/name, or a path.')
  from vit_jax.parallel import distributed
  from vit_jax.pretrained import formats, hub_files, peft_export, runs
  from vit_jax.pretrained.base import FORMATS
  from vit_jax.push import model_card

  distributed.skip_absent_tpu()
  kinds = ['hf', 'peft', *(name for name in FORMATS.names() if FORMATS[name].group == 'hf')]
  if _FORMAT.value not in (None, *kinds):
    raise UserError(f'--format is {_FORMAT.value!r}; choose one of {", ".join(kinds)}.')
  with tempfile.TemporaryDirectory(prefix='vit_jax_push_') as scratch:
    folder = pathlib.Path(scratch, 'model')
    pretrained = formats.read(source, weights=_WEIGHTS.value)
    base = pretrained.adapted and peft_export.on_hub(pretrained.adapted)
    kind = _FORMAT.value or ('peft' if base else 'hf')
    if kind == 'peft' and pretrained.adapted and not base:
      raise UserError(
        f'The base of the adapters of {source} is no repository of the Hub ({pretrained.adapted.base}), so that nobody '
        'else finds it; push it first and train from there, or write --format=hf for both in one.'
      )
    pretrained = formats.to_write(kind, pretrained)
    writer, chosen = formats.written_by(kind, pretrained)
    notes = (*chosen, *pretrained.notes, *writer.write(pretrained, folder))
    trained = runs.trained(formats.located(source), _WEIGHTS.value)
    model_card.write(folder, pretrained, source, trained, address or destination, _LICENSE.value)
    if address is None:
      _copy(folder, pathlib.Path(destination).expanduser())
      done = f'Wrote {destination}'
    else:
      url = hub_files.upload(folder, address, private=bool(_PRIVATE.value), message=_MESSAGE.value)
      done = f'Pushed {destination} ({url})'
  print(f'{done}: {pretrained.num_parameters:,} parameters, {pretrained.architecture.num_classes} classes.')
  for note in notes:
    print(note, file=sys.stderr)


def _copy(written: pathlib.Path, folder: pathlib.Path) -> None:
  """Copies files to a folder, the tensors last; UserError where it holds files that are not of an earlier push."""
  files.make_directories(folder)
  others = sorted({path.name for path in folder.iterdir()} - {path.name for path in written.iterdir()})
  if others:
    raise UserError(f'{folder} holds {others[0]}, which is not of this push; choose another folder.')
  for path in sorted(written.iterdir(), key=lambda path: path.suffix == '.safetensors'):
    shutil.copyfile(path, folder / path.name)


if __name__ == '__main__':
  cli.run(main, positional=True)
