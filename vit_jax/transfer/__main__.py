"""From one checkpoint to the paper's table: fine-tuning, VTAB and few-shot probes on the data that is here.

vit_jax transfer --checkpoint=imagenet21k/ViT-L_16 --suite=paper --workdir=runs/l16_table
vit_jax transfer --checkpoint=runs/mine --suite=vtab --workdir=runs/vtab_table
vit_jax transfer --checkpoint=runs/mine --suite=digits,fewshot:digits,folder:/images \\
  --workdir=runs/table --image_size=32 --batch_size=64 --steps=100 --rates=0.01,0.03 --scratch

On each data set the paper's learning rates are swept on a part of the training split. The final runs, with
several seeds, take the rate that is best on the rest of it. If it is stopped, the same command goes on.
WORKDIR gets table.md, table.csv, table.json and table.png, which name the data that is missing.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from absl import flags

from vit_jax import cli
from vit_jax.foundation.errors import UserError

if TYPE_CHECKING:
  from vit_jax.transfer.configs import Settings

_Number = TypeVar('_Number', int, float)

_CHECKPOINT = cli.define_checkpoint()
_WEIGHTS = cli.define_weights()
_SUITE = flags.DEFINE_string(
  'suite', 'paper', "paper, vtab, fewshot, or a list such as 'cifar10,vtab:dmlab,fewshot:folder:/path'."
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'The folder of the runs and the table; the same goes on.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Final runs, and draws of probes.', lower_bound=1)
_SHOTS = flags.DEFINE_list('shots', ['5'], 'Images of each class for few-shot probes; 0: all.')
_STEPS = flags.DEFINE_integer('steps', None, "Of a run; by default the paper's.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', None, 'By default 512.', lower_bound=1)
_SIDE = 'Pixels of a side; by default 384, of a checkpoint of images below 128 its own.'
_IMAGE_SIZE = flags.DEFINE_integer('image_size', None, _SIDE, lower_bound=1)
_RATES = flags.DEFINE_list('rates', None, "Learning rates to sweep; by default the paper's.")
_SCRATCH = flags.DEFINE_bool('scratch', False, 'Compare with the same model trained from scratch.')
_SCRATCH_RATES = flags.DEFINE_list(
  'scratch_rates', ['3e-4', '1e-3', '3e-3'], 'Learning rates to sweep from scratch.'
)
_REAL_LABELS = flags.DEFINE_string(
  'real_labels', 'download', "ImageNet ReaL's real.json: a path, an address or download; empty: without."
)
_OPTION = flags.DEFINE_multi_string(
  'option',
  [],
  'Any option of a config that no flag here says, in all runs: --option=model.dtype=bfloat16. One a flag.',
)


def main() -> None:
  """Makes the table, one data set after the other."""
  # Imported here: the start takes seconds, which --help need not.
  from vit_jax.foundation import compilation_cache
  from vit_jax.parallel import distributed
  from vit_jax.transfer import suites, table
  from vit_jax.transfer.lines import Line, Transfer

  settings = _settings()
  workdir = cli.local_folder(_WORKDIR).absolute()
  names = suites.names(_SUITE.value)
  distributed.initialize()
  compilation_cache.enable()
  import jax

  prints = jax.process_index() == 0

  def say(text: str) -> None:
    if prints:
      print(text, flush=True)

  transfer = Transfer(settings, workdir, say)
  lines: list[Line] = []
  for name in names:
    lines += transfer.lines(name)
    if prints:  # after each data set, so that there is a table to look at
      table.write(lines, transfer.compute(), dataclasses.asdict(settings), workdir)
  if all(line.missing for line in lines):
    raise UserError(f'None of the data of --suite={_SUITE.value} is here; {workdir / "table.md"} says why.')
  if prints:
    print((workdir / 'table.md').read_text(encoding='utf-8'))
    print(f'Wrote {workdir / "table.md"}, table.csv, table.json and table.png.')


def _settings() -> 'Settings':
  """What the flags ask for; UserError where one is missing or wrong."""
  from vit_jax.transfer.configs import Settings

  return Settings(
    checkpoint=cli.required(_CHECKPOINT),
    weights=_WEIGHTS.value,
    seeds=_SEEDS.value,
    shots=_numbers('shots', _SHOTS.value, int, lowest=0),
    steps=_STEPS.value,
    batch_size=_BATCH_SIZE.value,
    image_size=_IMAGE_SIZE.value,
    rates=_numbers('rates', _RATES.value, float, lowest=1e-12) if _RATES.value else None,
    scratch=bool(_SCRATCH.value),
    scratch_rates=_numbers('scratch_rates', _SCRATCH_RATES.value, float, lowest=1e-12),
    real_labels=_REAL_LABELS.value or None,
    options=tuple(_option(text) for text in _OPTION.value),
  )


def _option(text: str) -> tuple[str, str]:
  """'model.dropout=0.1' -> ('model.dropout', '0.1')."""
  name, _, value = text.partition('=')
  if not name or not value:
    raise UserError(f'--option={text} is no option with a value; write it like --option=model.dropout=0.1.')
  return name, value


def _numbers(flag: str, texts: Sequence[str], kind: type[_Number], *, lowest: float) -> tuple[_Number, ...]:
  """The numbers of a list flag; UserError for what is no number, below `lowest`, or there twice."""
  try:
    values = tuple(kind(text) for text in texts)
  except ValueError:
    values = ()
  if not values or min(values) < lowest or len(set(values)) < len(values):
    raise UserError(f'--{flag}={",".join(texts)} is no list of different numbers; write it like 1,5,10.')
  return values


if __name__ == '__main__':
  cli.run(main)
