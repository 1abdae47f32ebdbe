"""Processes whose main thread hangs, or only seems to."""

import pathlib
import subprocess
import sys
import textwrap
import threading

import pytest
from processes import HUNG

from vit_jax.training.watchdog import Watchdog
from vit_jax.training.workdir import Workdir

pytestmark = pytest.mark.slow

STEPS = """
  import pathlib, sys, threading, time
  from vit_jax.training.watchdog import Watchdog
  from vit_jax.training.workdir import Workdir

  def hang():
    time.sleep(60)

  with Watchdog(float(sys.argv[1]), pathlib.Path('hang.txt'), Workdir(pathlib.Path())) as watchdog:
    for step in range(1, 5):
      watchdog.begin(step)
      {step}
  print('good')
"""


def run(step: str, limit: float, folder: pathlib.Path) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, '-c', textwrap.dedent(STEPS).format(step=step), str(limit)],
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=HUNG,
  )


def test_step_that_hangs_ends_the_process_with_the_stacks_of_its_threads(tmp_path):
  result = run('threading.Thread(target=hang).start()\n    if step == 3: hang()', 0.5, tmp_path)
  assert result.returncode == 75, result.stderr
  said = result.stderr.strip().splitlines()[-1]
  assert said.startswith('Step 3 did not end within 0.5 s (config.step_limit)') and 'hang.txt' in said
  for text in (result.stderr, (tmp_path / 'hang.txt').read_text()):
    assert text.count('line 7 in hang') == 4  # three threads, and the step itself
    assert 'watchdog.py' in text


def test_batch_of_an_evaluation_that_does_not_come_ends_the_process(tmp_path):
  step = '\n    with watchdog.paused():\n      for _ in watchdog.limited(hang() for _ in range(2)): pass'
  result = run(step, 0.5, tmp_path)
  assert result.returncode == 75, result.stderr
  assert 'Reading a batch of an evaluation did not end within 0.5 s (config.step_limit)' in result.stderr


@pytest.mark.nightly
def test_pauses_quick_steps_and_work_after_the_loop_are_not_limited(tmp_path):
  work = (
    'with watchdog.paused():\n        for _ in watchdog.limited([1]): time.sleep(3)\n        time.sleep(3)'
  )
  step = f'\n    if step == 1:\n      {work}\n\ntime.sleep(3)'
  result = run(step, 2, tmp_path)
  assert (result.returncode, result.stdout) == (0, 'good\n'), result.stderr
  assert not list(tmp_path.iterdir())
  threads = threading.active_count()
  with Watchdog(0, tmp_path / 'hang.txt', Workdir(tmp_path)):  # no limit
    assert threading.active_count() == threads
