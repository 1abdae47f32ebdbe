"""The studies of configs/studies/: their runs can begin, and those on digits belong to those on photographs."""

import pathlib
import re

import fork_server
import pytest

from vit_jax.study import definition
from vit_jax.study.definition import Study

COMMAND = re.compile(r'vit_jax\.study (\w+)(:\w+)? --workdir=')
STUDIES = sorted((fork_server.ROOT / 'configs/studies').glob('*.py'))
ON_DIGITS = [path for path in STUDIES if f'vit_jax.study {path.stem}:digits' in path.read_text()]


@pytest.mark.parametrize('path', STUDIES, ids=lambda path: path.stem)
def test_every_study_of_a_shipped_header_has_runs_that_can_begin(path, tmp_path):
  commands = COMMAND.findall(path.read_text())
  assert (path.stem, '') in commands, 'the header gives the command'
  for name, argument in commands:
    assert name == path.stem
    check_runs(definition.load(f'{path}{argument}'), tmp_path)


@pytest.mark.parametrize('path', ON_DIGITS, ids=lambda path: path.stem)
def test_study_on_digits_has_the_variants_of_that_on_photographs(path, tmp_path):
  study = definition.load(f'{path}:digits')
  assert {run.config.data.source for run in check_runs(study, tmp_path)} == {'digits'}
  on_photographs = definition.load(str(path)).variants.values()
  assert {variant.line for variant in study.variants.values()} >= {variant.line for variant in on_photographs}
  if path.stem == 'shape':  # minutes a run on photographs, so that there are fewer sizes
    assert len(study.variants) > len(on_photographs)
  else:
    assert len(study.variants) == len(on_photographs)


def check_runs(study: Study, workdir: pathlib.Path) -> list[definition.StudyRun]:
  """The runs of a study, after checks that they can begin."""
  runs = definition.runs(study, workdir)
  assert len(runs) == len(study.variants) * len(study.seeds) >= 4
  for run in runs[: len(study.variants)]:
    data = run.config.data
    assert run.config.model.forward_flops(image_size=data.image_size, channels=data.channels, num_classes=10)
  return runs
