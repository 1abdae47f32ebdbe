"""The studies of configs/studies/: their runs can begin, and those on digits belong to those on photographs."""

import pathlib
import re

import fork_server
import pytest

from vit_jax.models.base import Architecture
from vit_jax.study import definition
from vit_jax.study.definition import Search, Study, Variant

COMMAND = re.compile(r'vit_jax\.study (\w+)(:\w+)? --workdir=')
STUDIES = sorted((fork_server.ROOT / 'configs/studies').glob('*.py'))


@pytest.mark.parametrize('path', STUDIES, ids=lambda path: path.stem)
def test_every_study_of_a_shipped_header_has_runs_that_can_begin(path, tmp_path):
  """And one on digits has the variants of that on photographs."""
  commands = COMMAND.findall(path.read_text())
  assert (path.stem, '') in commands and {name for name, _ in commands} == {path.stem}, (
    'the header gives them'
  )
  studies = {argument: definition.load(f'{path}{argument}') for _, argument in commands}
  sources = {argument: check_runs(study, tmp_path) for argument, study in studies.items()}
  if ':digits' in studies:
    photographs, digits = studies[''].variants.values(), studies[':digits'].variants.values()
    assert sources[':digits'] == {'digits'}
    assert {variant.line for variant in digits} >= {variant.line for variant in photographs}
    # Minutes a run on photographs, so that there are fewer shapes.
    assert len(digits) > len(photographs) if path.stem == 'shape' else len(digits) == len(photographs)


def check_runs(study: Study | Search, workdir: pathlib.Path) -> set[str]:
  """The sources of the runs of a study, after checks that they can begin; of a search at both ends of its ranges."""
  if isinstance(study, Search):
    ends = [(each.values or (each.low, each.high)) for each in study.ranges.values()]
    options = [dict(zip(study.ranges, (end[place] for end in ends), strict=True)) for place in (0, -1)]
    variants = {
      f'{place}': Variant(study.variant.config, {**study.variant.options, **each})
      for place, each in enumerate(options)
    }
    study = Study(study.title, variants, (0, 1), study.metric)
  runs = definition.runs(study, workdir)
  assert len(runs) == len(study.variants) * len(study.seeds) >= 4
  for run in runs[: len(study.variants)]:
    data = run.config.data
    assert Architecture(run.config.model, data.image_size, data.channels, 10).forward_flops()
  return {run.config.data.source for run in runs}
