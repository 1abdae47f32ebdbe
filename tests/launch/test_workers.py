"""The scripts for the workers of a TPU; this machine takes the place of the workers."""

import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
from fakes import AWKWARD, LAUNCH, ROOT, Fakes, assert_refused, succeed
from processes import wait_until

# Does what gcloud does: it cuts the command at spaces, ssh joins the parts, the login shell reads the result.
SSH = """
import subprocess
if 'ssh' in sys.argv:
  text = next(word for word in sys.argv if word.startswith('--command='))[10:]
  sys.exit(subprocess.run(['bash', '-c', ' '.join(text.split(' '))], cwd={home!r}).returncode)
if 'scp' in sys.argv:
  import shutil
  shutil.copy(sys.argv[5], os.path.join({home!r}, sys.argv[6].split(':')[1]))
"""
UV = """
if sys.argv[1] == 'venv':
  os.makedirs('.venv/bin', exist_ok=True)
  os.symlink(os.path.join(folder, 'venv_python'), '.venv/bin/python')
"""


@pytest.fixture
def home(tmp_path):
  """The home folder of a worker that `gcloud ssh` reaches, with our folder in it."""
  folder = tmp_path / 'the home'
  (folder / 'vit_jax_run').mkdir(parents=True)
  shutil.copytree(LAUNCH, folder / 'vit_jax_run' / 'launch')
  yield folder
  pid = folder / 'vit_jax_run' / 'run.pid'
  if pid.exists() and pathlib.Path('/proc', pid.read_text().strip()).exists():
    os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.fixture
def fakes(tmp_path, home):
  result = Fakes(tmp_path / 'bin')
  result.add('gcloud', SSH.format(home=str(home)))
  return result


def tpu(fakes, what: str, *rest: object, **environment: str):
  words = [LAUNCH / 'tpu_vm.sh', what, 'n', '--zone=z', *rest]
  return fakes.run(*words, VIT_JAX_RESTART_SECONDS='0', **environment)


def test_setup_unpacks_this_commit_and_installs_it(fakes, home):
  if not (ROOT / '.git').exists():
    pytest.skip('no git checkout')
  shutil.rmtree(home / 'vit_jax_run')
  for name in ('uv', 'sudo', 'curl', 'gcsfuse', 'mountpoint', 'venv_python'):
    fakes.add(name, {'uv': UV, 'mountpoint': 'sys.exit(1)'}.get(name, ''))
  succeed(tpu(fakes, 'setup', '--bucket=a b', "--mount=/mnt/it's"))
  head = subprocess.run(['git', 'show', 'HEAD:setup.py'], cwd=ROOT, capture_output=True, text=True)
  assert (home / 'vit_jax_run' / 'setup.py').read_text() == head.stdout
  assert fakes.calls('uv') == [
    ['venv', '--quiet', '--allow-existing', '--python', '3.12', '.venv'],
    ['pip', 'install', '--quiet', '--python', '.venv/bin/python', '--editable', '.[tpu,gcs]'],
  ]
  assert fakes.calls('gcsfuse') == [['--implicit-dirs', 'a b', "/mnt/it's"]]
  assert fakes.calls('sudo')[0] == ['mkdir', '-p', "/mnt/it's"]


def test_run_is_detached_and_gets_its_arguments(fakes, home):
  fakes.add('python', 'print("hello from the run")')
  succeed(tpu(fakes, 'run', '--', *AWKWARD, 'line\nbreak'))
  log = home / 'vit_jax_run' / 'run.log'
  wait_until(lambda: log.exists() and 'Exit code 0' in log.read_text(), what='the run does not end')
  assert fakes.calls('python') == [['-m', 'vit_jax.main', *AWKWARD, 'line\nbreak']]
  assert 'hello from the run' in log.read_text()
  assert 'nothing runs; last line: Exit code 0: the end.' in succeed(tpu(fakes, 'status'))


def test_preflight_runs_in_the_foreground_and_returns_its_exit_code(fakes):
  fakes.add('python', 'sys.exit(2)')
  assert tpu(fakes, 'preflight', '--', '--workdir=/a b').returncode == 2
  assert fakes.calls('python') == [['launch/preflight.py', '--workdir=/a b']]


def test_only_exit_code_75_starts_the_run_again(fakes, home):
  codes = home / 'codes'
  codes.write_text('75 75 3 0')
  take = f"""
  codes = open({str(codes)!r}).read().split()
  open({str(codes)!r}, 'w').write(' '.join(codes[1:]))
  sys.exit(int(codes[0]))
  """
  fakes.add('python', take)
  succeed(tpu(fakes, 'run', '--', '--config=c.py'))
  result = home / 'vit_jax_run' / 'run.code'
  wait_until(result.exists, what='the run does not end')
  assert fakes.calls('python') == 3 * [['-m', 'vit_jax.main', '--config=c.py']]
  assert result.read_text() == '3\n'


SAVES = """
  import signal, time
  def save(*_):
    time.sleep(0.5)
    print('saved', flush=True)
    sys.exit(75)
  signal.signal(signal.SIGTERM, save)
  print('ready', flush=True)
  time.sleep(60)
"""


def test_halt_sends_sigterm_to_python_waits_for_its_save_and_ends(fakes, home):
  fakes.add('python', SAVES)
  succeed(tpu(fakes, 'run', '--', '--config=c.py'))
  log = home / 'vit_jax_run' / 'run.log'
  wait_until(lambda: 'ready' in log.read_text(), what='it does not start')
  supervisor = int((home / 'vit_jax_run' / 'run.pid').read_text())
  assert os.getsid(supervisor) == supervisor  # the end of the ssh connection is not its end
  # A second run on the same worker is refused.
  assert_refused(tpu(fakes, 'run', '--', '--config=c.py'), 'is going on already')
  assert 'running' in succeed(tpu(fakes, 'status'))
  assert 'stopped' in succeed(tpu(fakes, 'halt'))
  assert log.read_text().split('\n')[-3:] == ['saved', 'Exit code 75: the end.', '']
  assert len(fakes.calls('python')) == 1  # not started again
  assert 'nothing runs' in succeed(tpu(fakes, 'halt'))


def test_killed_supervisor_leaves_no_run_alive(fakes, home):
  fakes.add('python', SAVES)
  succeed(tpu(fakes, 'run', '--', '--config=c.py'))
  log = home / 'vit_jax_run' / 'run.log'
  wait_until(lambda: 'ready' in log.read_text(), what='it does not start')
  supervisor = int((home / 'vit_jax_run' / 'run.pid').read_text())
  (run,) = pathlib.Path(f'/proc/{supervisor}/task/{supervisor}/children').read_text().split()
  os.kill(supervisor, signal.SIGKILL)
  wait_until(lambda: not pathlib.Path(f'/proc/{run}').exists(), what='the run is alive')


# Google's queue: each `describe`, and each query of the result, takes the next answer from its list.
QUEUE = """
import json
answers = json.load(open({path!r}))
kind = 'result' if sys.argv[-1].endswith('on_worker.sh result') else sys.argv[4]
if kind in answers:
  answer = answers[kind].pop(0) if len(answers[kind]) > 1 else answers[kind][0]
  json.dump(answers, open({path!r}, 'w'))
  if answer.startswith('ERROR'):
    sys.exit(answer)
  print(answer)
"""


def keep(fakes, tmp_path, describe: list[str], results: list[str], **others: list[str]):
  """Runs `keep` on that queue; (its result, the names of the actions it took)."""
  path = tmp_path / 'answers.json'
  path.write_text(json.dumps({'describe': describe, 'result': results, **others}))
  fakes.add('gcloud', QUEUE.format(path=str(path)))
  fakes.add('git', '[open(w[9:], "w") for w in sys.argv if w.startswith("--output=")]')
  words = [LAUNCH / 'queued_resources.sh', 'keep', 'n', '--zone=z', '--type=v6e-16', '--spot']
  result = fakes.run(*words, '--', *AWKWARD, VIT_JAX_POLL_SECONDS='0')
  did = []
  for call in fakes.calls('gcloud'):
    what = call[-1].rpartition('on_worker.sh ')[2].split()[0] if call[3] == 'ssh' else call[3]
    if what not in ('describe', 'result'):
      did.append(what)
  return result, did


CREATED = ['create', 'scp', 'setup', 'start']
NONE = 'ERROR: (gcloud.compute.tpus.queued-resources.describe) NOT_FOUND: Resource'


SETUP = ['scp', 'setup', 'stop', 'start']
LOST = 'could not be started, 5 times (exit code 1)'
# What happens -> states of the queue, results of the run, answers to other calls, exit code, its words, what is done.
KEEP = {
  'it ends': (
    [NONE, NONE, 'WAITING_FOR_RESOURCES', 'PROVISIONING', 'ACTIVE'],
    ['running', 'running', '0'],
    *({}, 0, '', CREATED),
  ),
  'silence is no preemption': (
    [NONE, NONE, 'ACTIVE', 'ERROR: timed out', 'ERROR: timed out', 'ACTIVE'],
    ['running', 'ERROR: ssh', 'running', '0'],
    *({}, 0, '', CREATED),
  ),
  'a failure, seen twice': (['ACTIVE'], ['running', '2', '2'], {}, 2, 'ended with exit code 2', CREATED[1:]),
  'a machine restarted': (
    *(['ACTIVE'], ['running', 'lost', 'running', '0'], {}, 0, ''),
    [*CREATED[1:], *SETUP],
  ),
  'new machines refuse ssh': (
    [NONE, NONE, 'ACTIVE'],
    *(['running', '0'], {'scp': ['ERROR: refused', '']}, 0, '', ['create', 'scp', *SETUP]),
  ),
  'a preemption while it sets up': (
    [NONE, NONE, 'ACTIVE', 'SUSPENDED', 'ACTIVE'],
    *(['0'], {'ssh': ['ERROR: connection lost', '']}, 0, ''),
    ['create', 'scp', 'setup', 'delete', 'create', *SETUP],
  ),
  'nothing can be set up': (['ACTIVE'], ['running'], {'scp': ['ERROR: no permission']}, 1, LOST, 5 * ['scp']),
  'Google refuses': (
    [NONE, NONE, 'WAITING_FOR_RESOURCES', 'FAILED'],
    *(['running'], {}, 2, 'The request n failed', ['create']),
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize('states, results, others, code, words, expected', KEEP.values(), ids=KEEP)
def test_keep_goes_on_as_long_as_there_is_hope(
  fakes, tmp_path, states, results, others, code, words, expected
):
  result, did = keep(fakes, tmp_path, states, results, **others)
  assert result.returncode == code and words in result.stderr, result.stderr
  assert did == expected


@pytest.mark.slow
def test_keep_creates_again_after_a_preemption_with_the_same_workdir(fakes, tmp_path):
  states = [NONE, NONE, 'ACTIVE', 'ACTIVE', 'SUSPENDING', 'SUSPENDED', 'WAITING_FOR_RESOURCES', 'ACTIVE']
  result, did = keep(fakes, tmp_path, states, ['134', '0'])  # what looked like a failure
  assert result.returncode == 0, result.stderr
  assert did == [*CREATED, 'delete', *CREATED]  # the same words, and so the same workdir
  starts = [call for call in fakes.calls('gcloud') if 'on_worker.sh start' in call[-1]]
  assert len(starts) == 2 and starts[0] == starts[1]
