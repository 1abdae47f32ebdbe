"""A study: configs with several seeds, trained one core each, to a table with means and deviations.

vit_jax study poster --workdir=runs/poster
vit_jax study configs/studies/position.py --workdir=runs/position --jobs=8
vit_jax study shape:digits --workdir=runs/shape_digits
vit_jax study my_study.py --workdir=runs/mine

A study's file has a function get_study(); configs/studies/ has those of docs/findings.md. Each run is an ordinary
training run in WORKDIR/VARIANT/seed_N, on the processor unless JAX_PLATFORMS says otherwise. If the study is
stopped or killed, the same command goes on: runs that have ended are not done again, others go on at their last
checkpoint. WORKDIR gets table.md, table.json and table.png, after each run.
"""

from collections.abc import Sequence

from absl import flags

from vit_jax import cli
from vit_jax.foundation import cpus
from vit_jax.foundation.errors import UserError

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
  from vit_jax.experiments import runner
  from vit_jax.study import definition, table

  study = definition.load(arguments[0])
  runs = definition.runs(study, workdir)
  if not runs:
    raise UserError(f'The study {arguments[0]} has no runs; give it variants and seeds.')
  runner.side_by_side(
    runs,
    lambda run: runner.Process('vit_jax.study.job', arguments[0], str(workdir), run.title),
    at_a_time=_JOBS.value or cpus.usable(),
    say=lambda text: print(text, flush=True),
    ended=lambda results: table.write(study, results, workdir),
  )
  print((workdir / 'table.md').read_text(encoding='utf-8'))
  print(f'Wrote {workdir / "table.md"}, table.json and table.png.')


if __name__ == '__main__':
  cli.run(main, positional=True)
