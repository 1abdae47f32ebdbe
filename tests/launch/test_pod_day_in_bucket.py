"""A pod's day: data and workdir in an emulated bucket, eight processes that lose one, and four that go on."""

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import bucket_data
import fork_server
import numpy as np
import pytest
from bucket_emulators import Place, places
from fakes import LAUNCH, ROOT
from kill_and_resume import final_arrays
from PIL import Image
from processes import HUNG, wait_until

import vit_jax
from vit_jax.checkpoint.bucket_steps import BucketSteps

STEPS = 40
DATA, RUN = 'gs://bucket/data/1.0.0', 'gs://bucket/runs/day'
# Plain SGD: Adam would turn differences of rounding into differences of a whole step.
CONFIG = f"""
from vit_jax.config import *

def get_config():
  return to_config_dict(Config(
    total='{STEPS} steps',
    batch_size=16,
    model=ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2, dropout=0.1),
    data=DataConfig(source='tfds:{DATA}', image_size=(8, 8), crop='inception', flip=True),
    evaluators={{'test': ClassificationEvaluatorConfig(split='test', every='{STEPS} steps')}},
    optimizer=OptimizerConfig(name='sgd', clip_norm=1.0),
    schedule=ScheduleConfig(learning_rate=0.01, warmup='10%'),
    ema=0.9,
    checkpoint=CheckpointConfig(every='4 steps'),
    log_every='1 steps',
    tensorboard=TensorBoardConfig(pictures=False),
  ))
"""


@pytest.fixture(scope='module')
def place() -> Iterator[Place]:
  with places('gs', own=True) as found:
    yield found


@pytest.fixture(scope='module')
def folder(place: Place, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder with the config and images; the bucket has them prepared."""
  found = tmp_path_factory.mktemp('pod_day')
  (found / 'config.py').write_text(CONFIG)
  bucket_data.prepare(bucket_data.write_images(found / 'images'), DATA)
  return found


def command(module: str, folder: pathlib.Path, *flags: str) -> subprocess.CompletedProcess:
  """A command that must succeed."""
  result = fork_server.run(module, *flags, cwd=folder, environment={'XDG_CACHE_HOME': str(folder / 'cache')})
  assert result.returncode == 0, result.stdout + result.stderr
  return result


class Pod:
  """`launch/local_pod.py` with so many processes of a device each; its logs are in a folder of their own."""

  def __init__(self, folder: pathlib.Path, processes: int):
    self._logs = folder / f'logs_of_{processes}'
    environment = {name: value for name, value in os.environ.items() if not name.startswith('JAX_')} | {
      'XLA_FLAGS': '--xla_backend_optimization_level=0',
      'XDG_CACHE_HOME': str(folder / 'cache'),
      'VIT_JAX_HEARTBEAT_SECONDS': '30',
      'JAX_ENABLE_COMPILATION_CACHE': 'false',
    }
    words = [sys.executable, LAUNCH / 'local_pod.py', f'--processes={processes}', f'--logs={self._logs}']
    flags = [f'--config={folder / "config.py"}', f'--workdir={RUN}']
    pipe = subprocess.PIPE
    self.launcher = subprocess.Popen(
      [*words, '--grace_seconds=120', '--', *flags],
      cwd=ROOT,
      env=environment,
      stdout=pipe,
      stderr=pipe,
      text=True,
    )

  def __enter__(self) -> 'Pod':
    return self

  def __exit__(self, *_: object) -> None:
    self.launcher.kill()  # and with it its processes
    self.launcher.wait()

  def send_to_one(self, number: int, process: int, place: Place, step: int) -> None:
    """Sends a signal to a process once a checkpoint after `step` is complete."""
    wait_until(lambda: committed(place) > step, lambda: self.launcher.poll() is None, self.output)
    children = pathlib.Path(f'/proc/{self.launcher.pid}/task/{self.launcher.pid}/children').read_text()
    own = f'JAX_PROCESS_ID={process}\0'.encode()
    (found,) = [pid for pid in children.split() if own in pathlib.Path(f'/proc/{pid}/environ').read_bytes()]
    os.kill(int(found), number)

  def wait(self) -> tuple[int, str]:
    """Exit code, and all that was written."""
    output = ''.join(self.launcher.communicate(timeout=HUNG))
    return self.launcher.returncode, output

  def log(self, process: int) -> str:
    return (self._logs / f'process-{process}.log').read_text()

  def output(self) -> str:
    return '\n'.join(log.read_text()[-1500:] for log in sorted(self._logs.glob('*.log')))


def committed(place: Place) -> int:
  """The newest complete step in the bucket; 0: there is none."""
  names = [name for name in place.names('runs/day') if name.endswith('commit_success.txt')]
  return max((int(name.split('/')[-2]) for name in names), default=0)


def lines(content: bytes) -> list[dict[str, float]]:
  return [json.loads(line) for line in content.splitlines()]


@pytest.mark.nightly
def test_eight_processes_lose_one_and_four_go_on_to_the_parameters_of_a_run_left_alone(
  place: Place, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
  with Pod(folder, 8) as pod:
    pod.send_to_one(signal.SIGKILL, 3, place, 4)
    code, output = pod.wait()
    assert code == 128 + signal.SIGKILL, output
    assert output.splitlines()[-1] == 'Failed: process 3 ended with exit code 137 (SIGKILL).'
    assert 'start the same command again' in pod.log(0)  # which lost process 3, or got the launcher's SIGTERM
    assert not any('Traceback (most recent' in pod.log(process) for process in range(8))
  lost_at = committed(place)
  assert lost_at < STEPS

  with Pod(folder, 4) as pod:
    pod.send_to_one(signal.SIGTERM, 2, place, lost_at)  # preempted: all save, and are started again
    code, output = pod.wait()
    assert code == 0, output + pod.output()
    assert 'Exit code 75: starting all again.' in output
    assert output.splitlines()[-1] == 'Done: all 4 processes ended with exit code 0.'

  command('vit_jax.main', folder, f'--config={folder / "config.py"}', '--workdir=alone')
  alone = lines((folder / 'alone' / 'metrics.jsonl').read_bytes())
  day = lines(place.get('runs/day/metrics.jsonl'))
  assert [line['step'] for line in day] == [line['step'] for line in alone] == list(range(1, STEPS + 1))
  for one, other in zip(day, alone, strict=True):
    assert one.keys() == other.keys()
    assert one['train/loss'] == pytest.approx(other['train/loss'], abs=1e-5)
  BucketSteps(f'{RUN}/checkpoints').fetch(STEPS, folder / 'day' / 'checkpoints' / str(STEPS))
  got, expected = final_arrays(folder / 'day'), final_arrays(folder / 'alone')
  assert got.keys() == expected.keys()
  for name, array in expected.items():
    np.testing.assert_allclose(got[name], array, rtol=0, atol=2e-6, err_msg=name)

  evaluated = command('vit_jax.main', folder, '--mode=eval', f'--workdir={RUN}')
  assert f'{day[-1]["test/accuracy"]:.2%}' in evaluated.stdout
  monkeypatch.setenv('XDG_CACHE_HOME', str(folder / 'other_cache'))
  image = folder / 'images' / 'test' / 'light' / '0.png'
  model = vit_jax.load(RUN)
  (name,) = model.classify([Image.open(image)])
  predicted = command('vit_jax.predict', folder, f'--checkpoint={RUN}', '--top=1', str(image))
  assert predicted.stdout.splitlines()[1].split(',')[3] == name
  command('vit_jax.convert', folder, RUN, 'day.npz')
  pixels = model.preprocess([Image.open(image)])
  np.testing.assert_allclose(vit_jax.load(folder / 'day.npz')(pixels), model(pixels), atol=1e-5)
