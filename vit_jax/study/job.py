"""One run of a study, in a process of its own: vit_jax study.job STUDY WORKDIR VARIANT/seed_N.

Where its stdin is a pipe, a study holds the other end; when the study is gone, this process ends too.
"""

import os
import pathlib
import stat
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vit_jax import cli

if TYPE_CHECKING:
  from vit_jax.study.definition import StudyRun

_BATCH_SIZE = 64  # images that a teacher labels at a time


def main(arguments: Sequence[str]) -> None:
  """Trains the run to its end, or goes on with it."""
  if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
    threading.Thread(target=_end_with_study, daemon=True).start()
  from vit_jax.foundation import compilation_cache
  from vit_jax.study import definition, search
  from vit_jax.training import results
  from vit_jax.training.workdir import open_workdir

  name, workdir, title = arguments
  study, folder = definition.load(name), pathlib.Path(workdir)
  if isinstance(study, definition.Search):
    run = search.trial_run(study, folder, title)
  else:
    run = next(run for run in definition.runs(study, folder) if run.title == title)
  compilation_cache.enable()
  with open_workdir(run.folder) as workdir:
    if run.unlabelled is not None and not results.has_ended(run.folder):
      _label(run)
    results.train(run.config, workdir, keep=True)


def _label(run: 'StudyRun') -> None:
  """Has the teachers label the images that have no labels, or goes on with it."""
  from vit_jax.selftrain import labelling, samples
  from vit_jax.selftrain.unlabelled import opened
  from vit_jax.study import definition

  assert run.teachers and run.unlabelled is not None
  teachers, folder = [str(teacher) for teacher in run.teachers], definition.labels_folder(run.folder)
  source = opened([run.unlabelled.images])
  teacher = labelling.Teachers(teachers, _BATCH_SIZE)
  chunks = labelling.Chunks(folder, teacher, source)
  chunks.label(teacher, source, (0, 1), lambda images: None)
  samples.prepare(source, chunks.read(), run.unlabelled.choice, teacher.class_names, folder)


def _end_with_study() -> None:
  """Ends this process at the end of stdin, as a kill does: the study that is started again goes on with it."""
  while os.read(sys.stdin.fileno(), 1):
    pass
  os._exit(1)


if __name__ == '__main__':
  cli.run(main, positional=True)
