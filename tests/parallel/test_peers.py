"""Real processes, one of which is killed or fails: the others end with one sentence and its exit code, or 75."""

import signal
import subprocess

import pytest
from processes import finish, start, wait_for_word

from vit_jax.foundation.errors import UserError
from vit_jax.parallel import peers
from vit_jax.parallel.distributed import heartbeat_seconds

SECONDS = 3
TRAINING = """
  import sys, time
  import jax
  import numpy as np
  from jax.experimental import multihost_utils
  from vit_jax import cli
  from vit_jax.foundation import errors
  from vit_jax.parallel import distributed, peers

  def main():
    distributed.initialize()
    with peers.Peers(distributed.heartbeat_seconds()):
      # As many as a step gathers: one that is a gather ahead of another would send Gloo pieces of another size.
      multihost_utils.process_allgather(np.ones(9))
      print('READY', flush=True)
      while True:
        {step}

  cli.run(main, sys.argv[:1])
"""

# Process 2 notices a loss, and process 0, which serves the store, reads of it at once.
PROCESS_0_READS_FIRST = """
  import os
  from vit_jax.parallel import peers
  if os.environ['JAX_PROCESS_ID'] == '0':
    os.environ['VIT_JAX_HEARTBEAT_SECONDS'] = '9'
    peers._MAX_SECONDS_BETWEEN_BEATS = peers._SECONDS_BETWEEN_LOOKS = 0.02
"""


@pytest.fixture(autouse=True)
def short_silence(monkeypatch):
  monkeypatch.setenv('VIT_JAX_HEARTBEAT_SECONDS', str(SECONDS))


def assert_ended_by_loss(process: subprocess.Popen, output: str, lost: int) -> None:
  said = output.strip().splitlines()[-1]
  assert process.returncode == 75, output
  assert said.startswith(f'Process {lost} was lost: ') and 'start the same command again' in said, output
  assert 'Traceback' not in output


@pytest.mark.slow
@pytest.mark.parametrize('beginning', ['', PROCESS_0_READS_FIRST], ids=['each', 'process_0_reads_first'])
def test_process_killed_in_a_collective_ends_the_others(beginning):
  processes = start(beginning + TRAINING.format(step='multihost_utils.process_allgather(np.ones(9))'), 3)
  wait_for_word(processes, 'READY')
  processes[1].kill()
  outputs = finish(processes)
  for index in (0, 2):
    assert_ended_by_loss(processes[index], outputs[index], lost=1)
    assert 'stack trace' not in outputs[index]  # no page of C++ frames


@pytest.mark.slow
def test_error_behind_a_loss_does_not_overtake_the_end_by_that_loss():
  """However long the end takes, which waits for the others: here 6 seconds, the error's own way out less."""
  beginning = """
  from vit_jax.foundation import signals
  end = signals.end_process
  signals.end_process = lambda *told: (time.sleep(6), end(*told))
  import time
"""
  step = "time.sleep(1.5)\n        if jax.process_index() == 0: raise ValueError('as a collective raises it')"
  processes = start(beginning + TRAINING.format(step=step), 2)
  wait_for_word(processes, 'READY')
  processes[1].kill()
  assert_ended_by_loss(processes[0], finish(processes)[0], lost=1)


@pytest.mark.slow
def test_loss_of_process_0_which_serves_the_store_ends_the_others():
  processes = start(TRAINING.format(step='time.sleep(1)'), 2)
  wait_for_word(processes, 'READY')
  processes[0].kill()
  outputs = finish(processes)
  assert_ended_by_loss(processes[1], outputs[1], lost=0)


@pytest.mark.nightly(but='full_disk')
@pytest.mark.slow
@pytest.mark.parametrize(
  ('failing', 'error', 'code', 'words'),
  [
    (0, "errors.UserError('There are no images; look for them.')", 2, 'There are no images; look for them.'),
    (1, "OSError(28, 'No space left on device', '/w/log')", 2, 'The disk is full: /w/log cannot be written'),
    (1, "ZeroDivisionError('ours')", 1, 'ZeroDivisionError, as its own output says.'),
  ],
  ids=['user_error', 'full_disk', 'ours'],
)
def test_failure_of_a_process_is_not_taken_for_its_loss(failing, error, code, words, monkeypatch):
  monkeypatch.setenv('VIT_JAX_HEARTBEAT_SECONDS', '60')  # so that none is lost on a busy machine
  step = (
    f'time.sleep(1)\n        if jax.process_index() == {failing}: raise {error}\n'
    '        multihost_utils.process_allgather(np.ones(9))'
  )
  processes = start(TRAINING.format(step=step), 2)
  outputs = finish(processes)
  assert [process.returncode for process in processes] == [code, code], outputs
  said = outputs[1 - failing].strip().splitlines()[-1]
  assert said.startswith(f'Process {failing} failed: ') and words in said


@pytest.mark.nightly
@pytest.mark.slow
def test_abort_of_another_cause_shows_its_stack():
  """By `PyDLL`, which holds Python's lock while it aborts."""
  beginning = '  import ctypes, os\n  index = int(os.environ["JAX_PROCESS_ID"])'
  step = 'ctypes.PyDLL(None).abort() if index else time.sleep(1)'
  processes = start(beginning + TRAINING.format(step=step), 2)
  outputs = finish(processes)
  assert processes[1].returncode == -signal.SIGABRT, outputs[1]
  assert 'Fatal Python error: Aborted' in outputs[1] and ' in main' in outputs[1]
  assert_ended_by_loss(processes[0], outputs[0], lost=1)


def test_a_silent_process_is_lost_and_one_that_has_left_is_not():
  found = peers.Peers(10.0)
  found._counts = {'0': ('7', 100.0), '1': (peers._LEFT, 50.0), '2': ('7', 85.0)}  # count, when it was new
  found._answered = 101.0
  assert found._silent_processes() == ['2']


@pytest.mark.slow
@pytest.mark.parametrize('text', ['soon', '0', 'inf'])
def test_heartbeat_that_makes_no_sense_is_a_user_error(text, monkeypatch):
  monkeypatch.setenv('VIT_JAX_HEARTBEAT_SECONDS', text)
  with pytest.raises(UserError, match='VIT_JAX_HEARTBEAT_SECONDS'):
    heartbeat_seconds()
