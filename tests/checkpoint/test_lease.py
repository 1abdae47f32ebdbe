"""Two runs do not write to one workdir; nothing is left behind by a run that was killed."""

import errno
import json
import logging
import os
import re
import signal
import socket

import filelock
import pytest
from processes import finish, run, start

from vit_jax.checkpoint.lease import FILE_NAME, Lease
from vit_jax.foundation.errors import UserError

HOLD = """
  import sys, time
  from vit_jax.checkpoint.lease import Lease
  with Lease(sys.argv[1]):
    print('held', flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
  """Another process that holds the lease of tmp_path/run."""
  (process,) = start(HOLD, arguments=(tmp_path / 'run',))
  assert process.stdout.readline() == 'held\n'
  yield process
  process.kill()
  finish([process])


def _refusal(workdir) -> str:
  with pytest.raises(UserError) as error, Lease(workdir):
    pass
  return str(error.value)


def test_second_run_is_refused_and_told_who_has_the_workdir(holder, tmp_path):
  before = (tmp_path / 'run' / FILE_NAME).read_text()
  for _ in range(2):
    text = _refusal(tmp_path / 'run')
    assert re.fullmatch(
      rf'{tmp_path}/run is in use by process {holder.pid} on {re.escape(socket.gethostname())} since '
      r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[-+]\d\d:\d\d; stop it, or choose another --workdir\.',
      text,
    )
  assert (tmp_path / 'run' / FILE_NAME).read_text() == before
  with Lease(tmp_path / 'other'):
    pass


def test_killed_run_leaves_no_lease_behind(holder, tmp_path):
  holder.send_signal(signal.SIGKILL)
  holder.wait()
  with Lease(tmp_path / 'run'):
    assert json.loads((tmp_path / 'run' / FILE_NAME).read_text())['pid'] == os.getpid()


def test_stopped_run_still_has_its_lease(holder, tmp_path):
  holder.send_signal(signal.SIGSTOP)
  assert f'process {holder.pid} ' in _refusal(tmp_path / 'run')


@pytest.mark.slow
def test_children_of_a_killed_run_do_not_hold_its_lease(tmp_path):
  """Neither forked ones nor other programs that the run started."""
  forks = """
    import os, subprocess, sys, time
    from vit_jax.checkpoint.lease import Lease
    with Lease(sys.argv[1]):
      program = subprocess.Popen(['sleep', '600'])
      child = os.fork()
      if child:
        print(child, program.pid, flush=True)
      time.sleep(600)
  """
  (process,) = start(forks, arguments=(tmp_path / 'run',))
  line = process.stdout.readline()
  while not re.fullmatch(r'\d+ \d+\n', line):  # JAX warns of forks
    assert line, 'the process ended'
    line = process.stdout.readline()
  children = [int(pid) for pid in line.split()]
  try:
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Lease(tmp_path / 'run'):
      pass
    for child in children:
      os.kill(child, 0)  # it lived all the time
  finally:
    for child in children:
      os.kill(child, signal.SIGKILL)
    process.stdout.close()


def test_lease_ends_with_the_block_and_after_an_error(tmp_path):
  with Lease(tmp_path):
    assert f'process {os.getpid()} ' in _refusal(tmp_path)
  with pytest.raises(ZeroDivisionError), Lease(tmp_path):
    raise ZeroDivisionError
  with Lease(tmp_path):
    pass


def test_holder_that_has_not_said_its_name_yet_is_another_process(tmp_path):
  with Lease(tmp_path):
    for content in ('', '{"pid": 1', '[]', '{"pid": 1}'):
      (tmp_path / FILE_NAME).write_text(content)
      assert f'{tmp_path} is in use by another process; stop it' in _refusal(tmp_path)


PAIR = """
  import sys
  from vit_jax.checkpoint.lease import Lease
  from vit_jax.foundation.errors import UserError
  from vit_jax.parallel import distributed
  distributed.initialize()
  for workdir in sys.argv[1:]:
    try:
      with Lease(workdir):
        print('held', workdir)
    except UserError as error:
      print(error)
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_several_processes_take_one_lease_together_or_are_all_refused_with_the_same_sentence(
  holder, tmp_path
):
  for output in run(PAIR, 2, arguments=(tmp_path / 'free', tmp_path / 'run')):
    assert f'held {tmp_path}/free\n' in output and f'held {tmp_path}/run' not in output
    assert f'is in use by process {holder.pid} on' in output


@pytest.mark.parametrize('number', [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog, number):
  def acquire(*_, **__):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr(filelock.FileLock, 'acquire', acquire)
  with caplog.at_level(logging.WARNING), Lease(tmp_path):
    pass
  assert 'has no locks' in caplog.text and 'make sure that no other run' in caplog.text
