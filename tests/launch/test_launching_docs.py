"""A dry run of every command of docs/launching.md."""

import re
import shlex
import sys

import pytest
from fakes import LAUNCH, ROOT, Fakes, succeed

TEXT = (ROOT / 'docs' / 'launching.md').read_text()
COMMANDS = [line for block in re.findall(r'```sh\n(.*?)```', TEXT, re.DOTALL) for line in block.splitlines()]


def test_page_names_every_script():
  used = {shlex.split(line.removeprefix('python '))[0] for line in COMMANDS}
  helpers = {'common.sh', 'end_with_parent.py', 'on_worker.sh', 'slurm_job.sh'}
  files = {f'launch/{path.name}' for path in LAUNCH.iterdir() if path.suffix in ('.py', '.sh')}
  assert used == files - {f'launch/{name}' for name in helpers}


@pytest.mark.slow
@pytest.mark.parametrize('line', COMMANDS)
def test_command_can_be_run(line, tmp_path):
  fakes = Fakes(tmp_path / 'bin')
  for name in ('gcloud', 'kubectl', 'sbatch', 'xpk'):
    fakes.add(name)
  words = shlex.split(line)
  if words[0] == 'python':
    words[0] = sys.executable
  if words[1].endswith('preflight.py'):  # it has no dry run
    words = [word.replace('runs/', f'{tmp_path}/') for word in words]
  else:
    at = words.index('--') if '--' in words else len(words)
    words.insert(at, '--dry-run')
  printed = succeed(fakes.run('env', f'--chdir={ROOT}', *words, JAX_PLATFORMS='cpu'))
  assert printed
  assert not list(fakes.folder.glob('*.calls'))
  # The configs that it names exist.
  for config in re.findall(r'--config=(configs/\w+\.py)', line):
    assert (ROOT / config).exists()
