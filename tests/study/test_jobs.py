"""How many runs of a study go on at a time."""

import os

import fork_server
import pytest

# The command, up to where its runs would begin.
COMMAND = """
import os, runpy, sys
from vit_jax.experiments import runner

def side_by_side(*arguments, at_a_time, **options):
  sys.exit(f'{at_a_time} at a time')

runner.side_by_side = side_by_side
os.cpu_count = lambda: 64
if os.environ['CORES']:
  os.sched_setaffinity(0, [int(os.environ['CORES'])])
runpy.run_module('vit_jax.study', run_name='__main__', alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(('flags', 'restricted'), [([], True), ([], False), (['--jobs=3'], True)])
def test_by_default_there_is_a_run_for_each_core_that_the_process_may_use(flags, restricted, tmp_path):
  (tmp_path / 'command.py').write_text(COMMAND)
  cores = os.sched_getaffinity(0)
  expected = 3 if flags else 1 if restricted else len(cores)
  result = fork_server.run(
    'command',
    *('poster', f'--workdir={tmp_path}/runs', *flags),
    cwd=tmp_path,
    environment={'CORES': str(min(cores)) if restricted else ''},
  )
  assert f'{expected} at a time' in result.stderr, result.stderr
