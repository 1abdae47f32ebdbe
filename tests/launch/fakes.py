"""Fake programs that only record how they are called; on PATH they come before the real ones."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

from processes import HUNG

ROOT = pathlib.Path(__file__).parents[2]
LAUNCH = ROOT / 'launch'

# Arguments that a shell, ssh, YAML or Kubernetes might interpret.
AWKWARD = [
  '--config=configs/it\'s a "test".py:jft',
  '--workdir=/mnt/my runs/$HOME/`id`',
  '--config.x=a  b;c&d|e*?~#(x)[y]{z} \\ 100% !h',
  '',
  'tab\there',
  '--config.text=ünï',
  '$(id) $$ $(HOME) $HOME',
  "''",
]

_RECORD = """\
#!{python}
import json, os, sys
folder = {folder!r}
call = dict(argv=sys.argv[1:], stdin=sys.stdin.read())
with open(os.path.join(folder, {name!r} + '.calls'), 'a') as file:
  file.write(json.dumps(call) + '\\n')
{body}
"""


class Fakes:
  """A folder of fake programs."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    folder.mkdir(parents=True, exist_ok=True)

  def add(self, name: str, body: str = '') -> None:
    """Adds a program; `body` is Python that runs after its call has been recorded."""
    path = self.folder / name
    path.write_text(
      _RECORD.format(python=sys.executable, folder=str(self.folder), name=name, body=textwrap.dedent(body))
    )
    path.chmod(0o755)

  def calls(self, name: str) -> list[list[str]]:
    """The arguments of each call, in order."""
    return [call['argv'] for call in self._calls(name)]

  def inputs(self, name: str) -> list[str]:
    """The stdin of each call."""
    return [call['stdin'] for call in self._calls(name)]

  def forget(self) -> None:
    """Removes the records of all calls."""
    for path in self.folder.glob('*.calls'):
      path.unlink()

  def run(self, *argv: object, **environment: str) -> subprocess.CompletedProcess:
    """Runs a program that finds the fakes before the real ones; its stdin is empty.

    Its python3 is this one: pyenv's would put its own folder before the fakes.
    """
    variables = dict(os.environ, **environment)
    variables['PATH'] = f'{self.folder}:{os.path.dirname(sys.executable)}:{os.environ["PATH"]}'
    return subprocess.run(
      [str(word) for word in argv],
      env=variables,
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=HUNG,
    )

  def _calls(self, name: str) -> list[dict]:
    path = self.folder / f'{name}.calls'
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def succeed(result: subprocess.CompletedProcess) -> str:
  """Asserts that the program succeeded, and returns its stdout."""
  assert result.returncode == 0, result.stdout + result.stderr
  return result.stdout


def assert_refused(result: subprocess.CompletedProcess, *texts: str) -> None:
  """Asserts that the program ended with exit code 2 and one sentence that has all `texts`."""
  assert result.returncode == 2, result.stdout + result.stderr
  lines = result.stderr.strip().splitlines()
  assert len(lines) == 1, result.stderr
  for text in texts:
    assert text in lines[0], lines[0]
