"""A run whose workdir is in an emulated bucket: killed, resumed on an empty disk, evaluated, compared and loaded."""

import json
import os
import pathlib
import shutil
import signal
import time

import bucket_data
import commands
import fork_server
import numpy as np
import pytest
from bucket_emulators import Place, places
from kill_and_resume import compare, joined
from processes import HUNG, wait_until, xla_flags

import vit_jax
from vit_jax.training.workdir import BucketWorkdir

pytestmark = pytest.mark.slow

ADDRESS = 'gs://bucket/runs/killed'
NAME = 'runs/killed'
KILLS = 2 if os.environ.get('VIT_JAX_NIGHTLY') else 1
CONFIG = commands.CONFIG.replace("total='4 steps'", "total='12 steps', log_every='1 steps', ema=0.9").replace(
  "every='2 steps'", "every='4 steps'"
)


@pytest.fixture(scope='module')
def place():
  with places('gs') as found:
    yield found


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
  found = tmp_path_factory.mktemp('bucket_workdir')
  (found / 'config.py').write_text(CONFIG)
  shutil.copy(fork_server.ROOT / 'tests' / 'train_in_bucket.py', found)
  return found


def environment(folder: pathlib.Path, place: Place) -> dict[str, str]:
  server = 'STORAGE_EMULATOR_HOST' if place.scheme == 'gs' else 'AWS_ENDPOINT_URL'
  return {
    'XDG_CACHE_HOME': str(folder / 'cache'),
    'XLA_FLAGS': xla_flags(devices=2),
    server: place.proxy.url,
  }


def start(
  folder: pathlib.Path, place: Place, workdir: str, *flags: str, **variables: str
) -> fork_server.Command:
  return fork_server.start(
    'train_in_bucket',
    '--config=config.py',
    f'--workdir={workdir}',
    *flags,
    cwd=folder,
    environment=environment(folder, place) | variables,
    log=folder / f'{time.monotonic_ns()}.log',
  )


def run(module: str, folder: pathlib.Path, place: Place, *flags: str):
  return fork_server.run(module, *flags, cwd=folder, environment=environment(folder, place))


def committed(place: Place, name: str) -> int:
  """The newest step that counts."""
  names = [name for name in place.names(name) if name.endswith('commit_success.txt')]
  return max((int(name.split('/')[-2]) for name in names), default=0)


def logs(folder: pathlib.Path) -> str:
  return '\n'.join(file.read_text()[-3000:] for file in sorted(folder.glob('*.log')))


def kill_after(
  run: list[fork_server.Command], place: Place, folder: pathlib.Path, name: str, step: int
) -> int:
  """Kills the processes of a run once a step after `step` counts; returns which."""
  wait_until(
    lambda: committed(place, name) > step,
    lambda: all(process.poll() is None for process in run),
    lambda: logs(folder),
  )
  for process in run:
    process.send_signal(signal.SIGKILL)
  for process in run:
    process.wait()
  return committed(place, name)


@pytest.fixture(scope='module')
def finished(place: Place, folder: pathlib.Path) -> int:
  """The run in the bucket, killed, each time with an empty disk afterwards; how often it was killed."""
  kills, step = 0, 0
  for _ in range(KILLS):
    step = kill_after([start(folder, place, ADDRESS)], place, folder, NAME, step)
    kills += step < 12
    shutil.rmtree(folder / 'cache')
  process = start(folder, place, ADDRESS)
  assert process.wait(120) == 0, logs(folder)
  return kills


@pytest.mark.nightly
def test_killed_run_ends_in_the_bits_and_the_lines_of_one_left_alone(place: Place, folder, finished: int):
  assert finished == KILLS
  alone = start(folder, place, str(folder / 'alone'))
  assert alone.wait(120) == 0, logs(folder)
  killed = place.get_folder(NAME, folder / 'copy')
  arrays, lines = compare(folder / 'alone', killed)
  assert arrays and lines == 12
  names = {
    path.relative_to(folder / 'alone').as_posix() for path in (folder / 'alone').rglob('*') if path.is_file()
  }
  expected = {name for name in names if not name.startswith(('checkpoints', 'events', 'lease'))}
  assert expected <= {path.relative_to(killed).as_posix() for path in killed.rglob('*')}
  assert list(killed.glob('events.out.tfevents*'))
  assert not (killed / 'lease.json').exists()


@pytest.mark.nightly
def test_commands_and_load_read_the_run_by_its_address(place: Place, folder, finished, monkeypatch):
  del finished
  evaluated = run('vit_jax.main', folder, place, '--mode=eval', f'--workdir={ADDRESS}')
  assert evaluated.returncode == 0, evaluated.stderr
  last = json.loads(place.get(f'{NAME}/metrics.jsonl').splitlines()[-1])
  assert f'{last["test/accuracy"]:.2%}' in evaluated.stdout
  compared = run('vit_jax.compare', folder, place, ADDRESS, str(folder / 'copy'), '--out=compared')
  assert compared.returncode == 0, compared.stderr
  assert 'killed' in compared.stdout and 'copy' in compared.stdout
  other = run(
    'train_in_bucket', folder, place, '--config=config.py', f'--workdir={ADDRESS}', '--config.seed=3'
  )
  assert other.returncode == 2
  assert f'{ADDRESS} holds a run with another config: seed' in other.stderr
  monkeypatch.setenv('XDG_CACHE_HOME', str(folder / 'other_cache'))
  images = np.linspace(-1, 1, 2 * 8 * 8 * 3, dtype=np.float32).reshape(2, 8, 8, 3)
  np.testing.assert_array_equal(vit_jax.load(ADDRESS)(images), vit_jax.load(folder / 'copy')(images))


def test_bucket_that_does_not_answer_ends_the_run_to_be_restarted(place: Place, folder):
  place.proxy.write_faults[:] = [400] * 1000
  result = run('train_in_bucket', folder, place, '--config=config.py', '--workdir=gs://bucket/gone')
  place.proxy.write_faults.clear()
  assert result.returncode == 75
  assert 'gs://bucket/gone/lease.json cannot be reached' in result.stderr


def test_workdir_whose_folders_a_console_made_is_brought_without_them(place: Place, tmp_path):
  for name in (
    'made/',
    'made/report/',
    'made/report/classes.json',
    'made/checkpoints/',
    'made/checkpoints/a',
  ):
    place.put(name, b'' if name.endswith('/') else b'{}')
  with BucketWorkdir('gs://bucket/made', tmp_path / 'local') as local:
    files = [path.relative_to(local.folder).as_posix() for path in local.folder.rglob('*') if path.is_file()]
  assert files == ['report/classes.json']


@pytest.mark.nightly
def test_two_processes_that_are_killed_end_in_the_same_bits(place: Place, folder):
  def processes(workdir: str) -> list[fork_server.Command]:
    variables = joined(2, devices=1)
    caches = [{'XDG_CACHE_HOME': str(folder / f'cache_{index}')} for index in (0, 1)]
    return [start(folder, place, workdir, **caches[index], **variables[index]) for index in (0, 1)]

  name, address = 'runs/two', 'gs://bucket/runs/two'
  begun = processes(address)
  kill_after(begun, place, folder, name, 0)
  for index in (0, 1):
    shutil.rmtree(folder / f'cache_{index}')
  assert [process.wait(120) for process in processes(address)] == [0, 0], logs(folder)
  assert [process.wait(120) for process in processes(str(folder / 'two_alone'))] == [0, 0], logs(folder)
  arrays, lines = compare(folder / 'two_alone', place.get_folder(name, folder / 'two_copy'))
  assert arrays and lines == 12


@pytest.mark.nightly
def test_killed_run_with_data_and_workdir_in_amazons_bucket_ends_in_the_same_bits(folder):
  address = 's3://bucket/runs/amazon'
  with places('s3', own=True) as amazon:
    data = bucket_data.prepare(bucket_data.write_images(folder / 'images'), 's3://bucket/data/1.0.0')
    option = f'--config.data.source={data}'
    kill_after([start(folder, amazon, address, option)], amazon, folder, 'runs/amazon', 0)
    shutil.rmtree(folder / 'cache')
    assert start(folder, amazon, address, option).wait(240) == 0, logs(folder)
    assert start(folder, amazon, str(folder / 'amazon_alone'), option).wait(240) == 0, logs(folder)
    arrays, lines = compare(folder / 'amazon_alone', amazon.get_folder('runs/amazon', folder / 'amazon_copy'))
    assert arrays and lines == 12
    assert not [name for name in amazon.names('runs/amazon') if name.endswith('lease.json')]
    result = run('vit_jax.main', folder, amazon, '--mode=eval', f'--workdir={address}')
    assert result.returncode == 0, result.stderr
    result = run('vit_jax.convert', folder, amazon, address, 's3://bucket/amazon.npz')
    assert result.returncode == 0 and 'Wrote s3://bucket/amazon.npz' in result.stdout, result.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
  ('split', 'said'), [('train', 'Step '), ('test', 'Reading a batch of an evaluation ')]
)
def test_bucket_that_stalls_is_said_within_the_limit_of_a_step(
  place: Place, folder, tmp_path, split: str, said: str
):
  name = f'stalling_{split}'
  data = bucket_data.prepare(bucket_data.write_images(tmp_path / 'images'), f'gs://bucket/{name}/1.0.0')
  options = (f'--config.data.source={data}', '--config.total=1000 steps', '--config.step_limit=20')
  process = start(folder, place, f'gs://bucket/runs/{name}', *options)
  wait_until(lambda: committed(place, f'runs/{name}'), lambda: process.poll() is None, lambda: logs(folder))
  place.proxy.stalled_seconds, place.proxy.faulty = 600, f'-{split}.array_record'
  place.proxy.faults[:] = ['stall'] * 100_000
  try:
    assert process.wait(HUNG) == 75
  finally:
    place.proxy.faults.clear()
    place.proxy.faulty = ''
  sentence = [line for line in logs(folder).splitlines() if 'did not end within 20 s' in line][-1]
  assert sentence.startswith(said) and '(config.step_limit)' in sentence
  assert f'gs://bucket/runs/{name}/report/hang_0.txt' in sentence
  assert b'watchdog.py' in place.get(f'runs/{name}/report/hang_0.txt')
