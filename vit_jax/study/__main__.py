"""A study: configs with several seeds, trained one core each, to a table with means and deviations.

vit_jax study poster --workdir=runs/poster
vit_jax study configs/studies/position.py --workdir=runs/position --jobs=8
vit_jax study shape:digits --workdir=runs/shape_digits
vit_jax study my_study.py --workdir=runs/mine

A study's file has a function get_study(); configs/studies/ has those of docs/findings.md. Each run is an ordinary
training run in WORKDIR/VARIANT/seed_N, on the processor unless JAX_PLATFORMS says otherwise. If the study is
stopped or killed, the same command goes on: runs that have ended are not done again, others go on at their last
checkpoint. WORKDIR gets table.md, table.json and table.png, after each run.

Where get_study() gives a Search, its ranges of options are searched (configs/studies/search.py): runs in
WORKDIR/trial_N, a table from the best on, and importance.png and parallel.png. Machines with a shared folder may do so
together by the same command.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax.foundation import cpus
from vit_jax.foundation.errors import UserError

if TYPE_CHECKING:
  from vit_jax.study.definition import Search, Study

_WORKDIR = flags.DEFINE_string('workdir', None, 'The folder of the runs and the table; the same goes on.')
_JOBS = flags.DEFINE_integer(
  'jobs', None, 'Runs at a time; by default one for each core that it may use.', lower_bound=1
)


def main(arguments: Sequence[str]) -> None:
  """Does the runs and writes the table."""
  if len(arguments) != 1:
    raise cli.missing_arguments('Name one study')
  workdir = cli.local_folder(_WORKDIR).absolute()
  # Imported here: the start takes seconds, which --help need not.
  from vit_jax.parallel import distributed
  from vit_jax.study import definition

  distributed.skip_absent_tpu()
  study, at_a_time = definition.load(arguments[0]), _JOBS.value or cpus.usable()
  if isinstance(study, definition.Search):
    _search(study, arguments[0], workdir, at_a_time)
  else:
    _study(study, arguments[0], workdir, at_a_time)
  print((workdir / 'table.md').read_text(encoding='utf-8'))


def _study(study: 'Study', file: str, workdir: pathlib.Path, at_a_time: int) -> None:
  """All variants with all seeds."""
  from vit_jax.experiments import runner
  from vit_jax.study import definition, table

  runs = definition.runs(study, workdir)
  if not runs:
    raise UserError(f'The study {file} has no runs; give it variants and seeds.')
  runner.side_by_side(
    runs,
    lambda run: runner.Process('vit_jax.study.job', file, str(workdir), run.title),
    at_a_time=at_a_time,
    say=lambda text: print(text, flush=True),
    ended=lambda results: table.write(study, results, workdir),
  )


def _search(search: 'Search', file: str, workdir: pathlib.Path, at_a_time: int) -> None:
  """Trials until the budget is spent; several machines may do this in one folder."""
  from vit_jax.study import search as search_lib
  from vit_jax.study import search_table

  searcher = search_lib.Searcher(search, file, workdir)
  search_table.write(search, searcher.study, workdir)  # also where nothing is left to do
  for sentence in searcher.run(at_a_time):
    print(sentence, flush=True)
    search_table.write(search, searcher.study, workdir)
  search_table.draw(search, searcher.study, workdir)
  if searcher.errors and not any(trial.value is not None for trial in searcher.study.trials):
    name, error = next(iter(searcher.errors.items()))
    raise UserError(f'All trials failed; the first is {name}: {error}')


if __name__ == '__main__':
  cli.run(main, positional=True)
