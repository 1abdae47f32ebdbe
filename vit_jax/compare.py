"""Runs side by side: their curves in one picture, their results and what differs in their configs as tables.

vit_jax compare runs/small runs/wide runs/wide_augmented
vit_jax compare runs/seed_0 runs/seed_1 runs/seed_2 --out=seeds
vit_jax compare runs/* --out=all_runs
vit_jax compare runs/small gs://bucket/wide

The folder --out gets `curves.png` and `compare.md`, which is printed too. Runs that differ only in their
seed also share a row with the mean over the seeds. A run may still be going on. Where batch sizes differ,
the curves are over images instead of steps.
"""

import contextlib
from collections.abc import Sequence

from absl import flags

from vit_jax import cli
from vit_jax.foundation import files

_OUT = flags.DEFINE_string('out', 'compared', 'The folder for curves.png and compare.md.')


def main(arguments: Sequence[str]) -> None:
  """Writes and prints the comparison."""
  if not arguments:
    raise cli.missing_arguments('Name the workdirs of the runs to compare')
  # Imported here: the start takes seconds, which --help need not.
  from vit_jax.experiments import comparison
  from vit_jax.training.workdir import open_workdir

  with contextlib.ExitStack() as stack:
    opened = [stack.enter_context(open_workdir(argument, read_only=True)) for argument in arguments]
    runs = comparison.read_runs([workdir.folder for workdir in opened])
  out = cli.local_folder(_OUT)
  files.make_directories(out)
  text = comparison.report(runs)
  files.write_text(out / 'compare.md', text)
  comparison.draw(runs, out / 'curves.png')
  print(text)
  print(f'Wrote {out / "compare.md"} and {out / "curves.png"}.')


if __name__ == '__main__':
  cli.run(main, positional=True)
