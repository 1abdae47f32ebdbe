"""Each script, with fake programs that record how they are called."""

import json
import os
import shutil
import subprocess

import pytest
from fakes import AWKWARD, LAUNCH, ROOT, Fakes, assert_refused, succeed

PLACE = ['--zone=us-east1-d', '--project=p']


@pytest.fixture
def fakes(tmp_path):
  result = Fakes(tmp_path / 'bin')
  for name in ('gcloud', 'xpk', 'sbatch', 'srun', 'scontrol'):
    result.add(name)
  return result


@pytest.mark.slow
def test_shellcheck_finds_nothing():
  if shutil.which('shellcheck') is None:
    pytest.skip('shellcheck is not installed')
  scripts = sorted(LAUNCH.glob('*.sh'))
  result = subprocess.run(['shellcheck', '-x', *scripts], cwd=ROOT, capture_output=True, text=True)
  assert result.returncode == 0, result.stdout


@pytest.mark.parametrize('shell', ['sh', 'bash'])
def test_quoted_text_is_split_into_the_same_arguments(shell):
  words = [*AWKWARD, 'line\nbreak', '-n', '--', '\\', '\x01', '日本']
  quote = ['bash', '-c', 'source "$0" && quoted "$@"', LAUNCH / 'common.sh', *words]
  text = subprocess.run(quote, capture_output=True, text=True, check=True).stdout
  split = [shell, '-c', f"""for word in {text}; do printf '%s\\0' "$word"; done"""]
  assert subprocess.run(split, capture_output=True, check=True).stdout.decode().split('\0')[:-1] == words


TPU_VM = [
  (
    ['create', 'n', '--type=v3-32', '--spot', '--internal-ip'],
    ['create', 'n', *PLACE, '--accelerator-type=v3-32', '--version=tpu-ubuntu2204-base', '--spot'],
  ),
  (
    ['create', 'n', '--type=v6e-8', '--version=own'],
    ['create', 'n', *PLACE, '--accelerator-type=v6e-8', '--version=own'],
  ),
  (
    ['create', 'n', '--type=v5litepod-16'],
    ['create', 'n', *PLACE, '--accelerator-type=v5litepod-16', '--version=v2-alpha-tpuv5-lite'],
  ),
  (['delete', 'n'], ['delete', 'n', *PLACE, '--quiet']),
  (
    ['logs', 'n', '--internal-ip'],
    [
      *('ssh', 'n', '--worker=0', *PLACE, '--internal-ip'),
      '--command=cd vit_jax_run && tail -n 100 -F run.log',
    ],
  ),
]


QUEUED = [
  (
    ['create', 'n', '--type=v5p-32', '--reserved', '--valid-until=6h'],
    [
      *('create', 'n', *PLACE, '--accelerator-type=v5p-32', '--runtime-version=v2-alpha-tpuv5'),
      *('--node-id=n', '--reserved', '--valid-until-duration=6h'),
    ],
  ),
  (
    ['create', 'n', '--type=v6e-256', '--slices=4', '--spot'],
    [
      *('create', 'n', *PLACE, '--accelerator-type=v6e-256', '--runtime-version=v2-alpha-tpuv6e'),
      *('--node-count=4', '--node-prefix=n', '--spot'),
    ],
  ),
  (
    ['status', 'n'],
    [
      *('ssh', 'n', '--node=all', '--worker=all', *PLACE),
      '--command=cd vit_jax_run && bash launch/on_worker.sh status',
    ],
  ),
]
CALLS = [
  *(('tpu_vm.sh', 'tpu-vm', *case) for case in TPU_VM),
  *(('queued_resources.sh', 'queued-resources', *case) for case in QUEUED),
]


@pytest.mark.parametrize('script, kind, given, expected', CALLS)
def test_script_calls_gcloud(fakes, script, kind, given, expected):
  succeed(fakes.run(LAUNCH / script, *given, *PLACE))
  assert fakes.calls('gcloud') == [['compute', 'tpus', kind, *expected]]


DRY = [
  ('gcloud', 'tpu_vm.sh', ['create', 'n', '--zone=z', '--type=v3-8']),
  ('gcloud', 'tpu_vm.sh', ['run', 'n', '--zone=z', '--', *AWKWARD]),
  ('gcloud', 'tpu_vm.sh', ['preflight', 'n', '--zone=z', '--', *AWKWARD]),
  ('gcloud', 'queued_resources.sh', ['run', 'n', '--zone=z', '--', 'python', *AWKWARD]),
  ('xpk', 'xpk.sh', ['create', 'w', '--cluster=c', '--type=v6e-16', '--image=i', '--', *AWKWARD]),
  ('sbatch', 'slurm.sh', ['--nodes=2', '--gpus=8', '--', *AWKWARD]),
]


@pytest.mark.parametrize('program, script, given', DRY)
def test_dry_run_prints_what_would_run(fakes, program, script, given):
  succeed(fakes.run(LAUNCH / script, *given))
  expected = fakes.calls(program)
  fakes.forget()
  text = succeed(fakes.run(LAUNCH / script, '--dry-run', *given))
  assert fakes.calls(program) == []
  succeed(fakes.run('bash', '-c', text))  # pasted into a shell
  assert fakes.calls(program) == expected


def test_xpk_gets_flags_and_a_command_that_kubernetes_reads_back(fakes):
  place = ['--cluster=c', '--project=p', '--zone=z']
  options = ['--type=v6e-16', '--image=i', '--slices=2', '--storage=s', *place]
  succeed(fakes.run(LAUNCH / 'xpk.sh', 'create', 'w', *options, '--', *AWKWARD))
  (call,) = fakes.calls('xpk')
  assert call[:-1] == [
    *('workload', 'create', *place, '--workload=w', '--tpu-type=v6e-16', '--num-slices=2'),
    *('--docker-image=i', '--max-restarts=100', '--restart-on-exit-codes=75'),
    *('--termination-grace-period-seconds=120', '--storage=s'),
  ]
  # Kubernetes reads it first, then XPK's script.
  text = call[-1].removeprefix('--command=').replace('$$', '$')
  fakes.add('python')
  succeed(fakes.run('bash', '-c', f'({text}) & wait $!'))
  assert fakes.calls('python') == [['-m', 'vit_jax.main', *AWKWARD]]
  assert_refused(fakes.run(LAUNCH / 'xpk.sh', 'create', 'w', *options, '--', 'a\nb'), 'line break')
  fakes.forget()
  succeed(fakes.run(LAUNCH / 'xpk.sh', 'list', *place))
  succeed(fakes.run(LAUNCH / 'xpk.sh', 'delete', 'w', *place))
  assert fakes.calls('xpk') == [['workload', 'list', *place], ['workload', 'delete', '--workload=w', *place]]


def test_slurm_submits_the_job_with_its_arguments(fakes):
  options = ['--nodes=2', '--gpus=4', '--cpus=6', '--time=1:00:00', '--partition=gpu', '--account=a']
  succeed(fakes.run(LAUNCH / 'slurm.sh', *options, '--signal-seconds=120', '--', *AWKWARD))
  (call,) = fakes.calls('sbatch')
  assert call == [
    *('--nodes=2', '--ntasks-per-node=4', '--gpus-per-node=4', '--cpus-per-task=6', '--time=1:00:00'),
    *('--job-name=vit_jax', '--signal=TERM@120', '--requeue', '--open-mode=append', f'--chdir={ROOT}'),
    *('--output=runs/slurm-%j.out', '--partition=gpu', '--account=a'),
    *(str(LAUNCH / 'slurm_job.sh'), '.venv', 'python', '-m', 'vit_jax.main', *AWKWARD),
  ]


def test_slurm_refuses_a_virtual_environment_that_is_not_there(fakes, tmp_path):
  words = [
    LAUNCH / 'slurm.sh',
    '--nodes=2',
    '--gpus=4',
    f'--venv={tmp_path / "my env"}',
    '--',
    '--config=c.py',
  ]
  assert_refused(fakes.run(*words), 'my env has no bin/activate')
  assert fakes.calls('sbatch') == []
  (tmp_path / 'my env' / 'bin').mkdir(parents=True)
  (tmp_path / 'my env' / 'bin' / 'activate').touch()
  succeed(fakes.run(*words))
  assert str(tmp_path / 'my env') in fakes.calls('sbatch')[0]


@pytest.mark.parametrize(
  'code, restarts, requeued', [(0, 0, False), (75, 3, True), (1, 0, False), (75, 100, False)]
)
def test_slurm_job_is_queued_again_after_75_only(fakes, tmp_path, code, restarts, requeued):
  fakes.add('srun', f'sys.exit({code})')
  job = (
    tmp_path / 'spool'
  )  # Slurm runs a copy from another folder, in the working directory that --chdir gave
  shutil.copy(LAUNCH / 'slurm_job.sh', job)
  variables = {'SLURM_JOB_ID': '7', 'SLURM_CPUS_PER_TASK': '6', 'SLURM_RESTART_COUNT': str(restarts)}
  result = fakes.run('env', f'--chdir={ROOT}', 'bash', job, 'no venv', 'python', *AWKWARD, **variables)
  flags = ['--cpus-per-task=6', '--gpu-bind=none', '--kill-on-bad-exit=0', '--wait=300']
  assert fakes.calls('srun') == [[*flags, 'python', *AWKWARD]]
  assert fakes.calls('scontrol') == ([['requeue', '7']] if requeued else [])
  assert result.returncode == (2 if restarts == 100 else code)


@pytest.mark.parametrize(
  'script, given, words',
  [
    ('tpu_vm.sh', ['create', 'n', '--type=v3-8'], '--zone=… is missing'),
    ('tpu_vm.sh', ['create', 'n', '--zone=z', '--type=v9-8'], 'give --version'),
    ('tpu_vm.sh', ['create', '--zone=z', '--type=v3-8'], 'the name of the TPU'),
    ('tpu_vm.sh', ['dance', 'n', '--zone=z'], 'dance is not something to do'),
    ('tpu_vm.sh', ['stop', 'n', '--zone'], '--zone needs a value'),
    ('tpu_vm.sh', ['stop', 'n', '--zone=z', '--zoom=2'], '--zoom=… is not an option'),
    ('tpu_vm.sh', ['run', 'n', '--zone=z'], 'Nothing to run'),
    ('xpk.sh', ['create', 'w', '--cluster=c', '--type=v6e-8', '--', '--x'], '--image=… is missing'),
    ('slurm.sh', ['--nodes=1', '--gpus=1', 'configs/a.py'], 'goes after --'),
  ],
)
def test_wrong_arguments_are_one_sentence(fakes, script, given, words):
  assert_refused(fakes.run(LAUNCH / script, *given), words)
  assert not list(fakes.folder.glob('*.calls'))


@pytest.mark.parametrize('script', ['tpu_vm.sh', 'queued_resources.sh', 'xpk.sh', 'slurm.sh'])
def test_help_is_the_comment_at_the_top(fakes, script):
  text = succeed(fakes.run(LAUNCH / script, '--help'))
  assert f'launch/{script}' in text and '--dry-run' in text and 'shellcheck' not in text


@pytest.mark.slow
def test_real_gcloud_accepts_these_flags(fakes, tmp_path):
  """Only gcloud's own parser runs; nothing is sent to Google."""
  if (gcloud := shutil.which('gcloud')) is None:
    pytest.skip('gcloud is not installed')
  environment = dict(os.environ, CLOUDSDK_CONFIG=str(tmp_path))
  for _, kind, given, expected in CALLS:
    words = ['gcloud', 'compute', 'tpus', kind, *expected]
    text = ' '.join(word.replace(' ', '_') for word in words)  # its lint cuts a text at spaces
    lint = [gcloud, 'meta', 'lint-gcloud-commands', f'--command-string={text}']
    result = subprocess.run(lint, env=environment, capture_output=True, text=True)
    if 'Invalid choice' in result.stderr:
      pytest.skip('this gcloud cannot check commands')
    (answer,) = json.loads(result.stdout)
    assert answer['success'], (given, answer['error_message'])
