"""From one checkpoint to the paper's table: fine-tuning, VTAB and few-shot probes of what data is here.

python -m vit_jax.transfer --checkpoint=imagenet21k/ViT-L_16 --suite=paper --workdir=runs/l16_table
python -m vit_jax.transfer --checkpoint=runs/mine --suite=vtab --workdir=runs/vtab_table
python -m vit_jax.transfer --checkpoint=runs/mine --suite=digits,fewshot:digits,folder:/images \\
  --workdir=runs/table --image_size=32 --batch_size=64 --steps=100 --rates=0.01,0.03 --scratch

For each data set the paper's learning rates are swept on one part of the training split. The rate that is
best on the other part is then used for the final runs, with several seeds. If it is stopped, the same
command goes on. WORKDIR gets table.md, table.csv, table.json and table.png, and says what data is missing
(docs/transfer.md).
"""

import dataclasses
import pathlib

from absl import flags

from vit_jax import cli
from vit_jax.errors import UserError

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint', None, 'As vit_jax.load takes it: a path, an address or a name.'
)
_SUITE = flags.DEFINE_string(
  'suite', 'paper', "paper, vtab, fewshot, or a list such as 'cifar10,vtab:dmlab,fewshot:folder:/path'."
)
_WORKDIR = flags.DEFINE_string('workdir', None, 'Where the runs and the table lie; the same again goes on.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Final runs, and draws of probes.', lower_bound=1)
_SHOTS = flags.DEFINE_list('shots', ['5'], 'Images of each class for few-shot probes; 0: all.')
_STEPS = flags.DEFINE_integer('steps', None, "Of a run; by default the paper's.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', None, 'By default 512.', lower_bound=1)
_IMAGE_SIZE = flags.DEFINE_integer('image_size', None, 'Pixels of a side; by default 384.', lower_bound=1)
_RATES = flags.DEFINE_list('rates', None, "Learning rates to choose from; by default the paper's.")
_SCRATCH = flags.DEFINE_bool('scratch', False, 'Compare with the same model trained from scratch.')
_SCRATCH_RATES = flags.DEFINE_list('scratch_rates', ['3e-4', '1e-3', '3e-3'], 'Likewise, from scratch.')
_REAL_LABELS = flags.DEFINE_string(
  'real_labels', 'download', "ImageNet ReaL's real.json: a path, an address or download; empty: without."
)
_OPTION = flags.DEFINE_multi_string(
  'option', [], 'Any option of vit_jax/config.py, in all runs: --option=model.dtype=bfloat16. One a flag.'
)


def main() -> None:
  given, workdir = _settings_given(), _workdir()
  # Imported here: a wrong flag is told before JAX has started.
  from vit_jax import compilation_cache
  from vit_jax.parallel import distributed
  from vit_jax.transfer import suites
  from vit_jax.transfer.configs import Settings
  from vit_jax.transfer.runner import Button

  names = suites.names(_SUITE.value)
  settings = Settings(**given)
  distributed.initialize()
  compilation_cache.enable()
  import jax

  first = jax.process_index() == 0
  button = Button(settings, workdir, say=lambda text: print(text, flush=True) if first else None)
  lines = []
  for name in names:
    lines += button.lines(name)
    if first:
      _write(lines, button, settings)  # after each, so that there is one to look at
  if all(line.missing for line in lines):
    raise UserError(f'None of the data of --suite={_SUITE.value} is here; {workdir / "table.md"} says why.')
  if first:
    print((workdir / 'table.md').read_text())
    print(f'Wrote {workdir / "table.md"}, table.csv, table.json and table.png.')


def _write(lines: list, button, settings) -> None:
  from vit_jax.transfer import table

  workdir = _workdir()
  workdir.mkdir(parents=True, exist_ok=True)
  table.write(lines, button.compute(), dataclasses.asdict(settings), workdir)


def _workdir() -> pathlib.Path:
  return pathlib.Path(cli.required(_WORKDIR)).expanduser().absolute()


def _settings_given() -> dict:
  """The arguments of `Settings`.

  Raises:
    UserError: something that is no number, or no option.
  """
  options = [tuple(text.partition('=')[::2]) for text in _OPTION.value]
  for name, value in options:
    if not name or not value:
      raise UserError(f'--option={name} is no option with a value; write it like --option=model.dropout=0.1.')
  return {
    'checkpoint': cli.required(_CHECKPOINT),
    'seeds': _SEEDS.value,
    'shots': _numbers('shots', _SHOTS.value, int, 0),
    'steps': _STEPS.value,
    'batch_size': _BATCH_SIZE.value,
    'image_size': _IMAGE_SIZE.value,
    'rates': _numbers('rates', _RATES.value, float, 1e-12) if _RATES.value else None,
    'scratch': _SCRATCH.value,
    'scratch_rates': _numbers('scratch_rates', _SCRATCH_RATES.value, float, 1e-12),
    'real_labels': _REAL_LABELS.value or None,
    'options': tuple(options),
  }


def _numbers(flag: str, texts: list[str], kind: type, lowest: float) -> tuple:
  try:
    values = tuple(kind(text) for text in texts)
  except ValueError:
    values = ()
  if not values or min(values) < lowest or len(set(values)) < len(values):
    raise UserError(f'--{flag}={",".join(texts)} is no list of different numbers; write it like 1,5,10.')
  return values


if __name__ == '__main__':
  cli.run(main)
