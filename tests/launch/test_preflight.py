"""The checks before a run, on one host and on two."""

import os
import subprocess
import sys

import fork_server
import pytest
from bucket_emulators import places
from fakes import LAUNCH, assert_refused, succeed
from processes import HUNG, xla_flags


def alone(*flags: str) -> subprocess.CompletedProcess:
  return fork_server.run('preflight', *flags, cwd=LAUNCH, environment={'XLA_FLAGS': xla_flags(devices=3)})


@pytest.mark.slow
def test_one_line_for_each_check(tmp_path):
  workdir = tmp_path / 'new' / 'my run'
  lines = succeed(alone(f'--workdir={workdir}', '--data=digits', '--hosts=1', '--devices_per_host=3'))
  names = [line.partition(': ')[0] for line in lines.splitlines()]
  assert names == ['versions', 'devices', 'psum', 'workdir', 'shared', 'data']
  assert '1 hosts with 3 each' in lines and 'right over 3 devices' in lines
  assert '1,437 records, 10 classes' in lines
  assert list(workdir.iterdir()) == []


@pytest.mark.slow
def test_workdir_in_a_bucket_is_written_and_read():
  with places('gs') as place:
    lines = succeed(alone('--workdir=gs://bucket/run'))
    assert 'workdir: gs://bucket/run: written, read' in lines
    assert place.names('run') == []


@pytest.mark.slow
def test_failed_check_is_one_sentence(tmp_path):
  file = tmp_path / 'file'
  file.write_text('')
  assert_refused(alone('--devices_per_host=4'), 'devices: ', 'there are 3 devices, not 4')
  assert_refused(alone('--hosts=2'), 'there are 1 hosts, not 2')
  assert_refused(alone(f'--workdir={file}/run'), 'workdir: ', str(file))
  assert_refused(alone('--data=digit'), 'data: ', "'digit' is not a source")


def pod(tmp_path, text: str) -> tuple[int, list[str]]:
  """Runs Python text on two hosts; (the pod's exit code, the output of each host)."""
  script = tmp_path / 'host.py'
  script.write_text(f'import os, runpy, sys\n{text}\n')
  command = [sys.executable, LAUNCH / 'local_pod.py', f'--logs={tmp_path / "logs"}', '--devices=2']
  environment = {name: value for name, value in os.environ.items() if not name.startswith('JAX_')}
  environment['XLA_FLAGS'] = ''
  result = subprocess.run(
    [*command, '--', sys.executable, script], env=environment, capture_output=True, text=True, timeout=HUNG
  )
  return result.returncode, [(tmp_path / 'logs' / f'process-{i}.log').read_text() for i in range(2)]


RUN = f"""
sys.argv = ['preflight.py', *flags]
sys.path.insert(0, {str(LAUNCH)!r})
runpy.run_path({str(LAUNCH / 'preflight.py')!r}, run_name='__main__')
"""


@pytest.mark.slow
def test_two_hosts_with_the_same_folder_pass(tmp_path):
  code, logs = pod(tmp_path, f"flags = ['--workdir={tmp_path}/run', '--data=digits', '--hosts=2']\n{RUN}")
  assert code == 0, logs
  assert 'devices: 2 hosts with 2 each' in logs[0] and 'right over 4 devices' in logs[0]
  assert 'each of 2 hosts reads what another wrote' in logs[0]
  assert 'devices:' not in logs[1]  # only one host prints


@pytest.mark.slow
def test_two_hosts_with_different_data_end_together(tmp_path):
  text = "flags = ['--data=digits:' + ('train', 'train[:50%]')[int(os.environ['JAX_PROCESS_ID'])]]"
  code, logs = pod(tmp_path, f'{text}\n{RUN}')
  assert code == 2, logs
  assert all('data: it differs between the hosts' in log for log in logs), logs


@pytest.mark.slow
def test_failure_on_one_host_ends_all(tmp_path):
  text = "flags = ['--data=' + ('digits', 'folder:/nowhere')[int(os.environ['JAX_PROCESS_ID'])]]"
  code, logs = pod(tmp_path, f'{text}\n{RUN}')
  assert code == 2, logs
  assert 'it failed in process 1' in logs[0] and '/nowhere' in logs[1], logs
