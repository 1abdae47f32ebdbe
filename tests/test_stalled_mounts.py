"""SIGTERM ends every command also while a file system does not answer: what it reads, and what it writes."""

import pathlib
import shutil
import signal
import time

import commands
import fork_server
import numpy as np
import pytest
from PIL import Image
from processes import HUNG, wait_until
from released_files import path
from stalled_mount import Stalling

CONFIG = commands.CONFIG.replace("'4 steps'", "'500 steps'").replace(
  "    evaluators={'test': ClassificationEvaluatorConfig(split='test')},\n", ''
)
STUDY = """
from vit_jax.study.definition import Study, Variant

def get_study():
  return Study('One run', {'one': Variant('quickstart', {'total': '2 steps', 'model.depth': 1})}, seeds=(0,))
"""
# Where the file system stalls: it answers this operation of a path with this text, and nothing after it.
TRAINING = {
  'images: read': ('images', 'OPEN', '.png'),
  'images: a step': ('images', 'OPEN', 'b/9.png'),
  'workdir: a line': ('run', 'WRITE', 'metrics.jsonl'),
  'workdir: a save': ('run', 'MKDIR', 'checkpoints/2'),
}
OTHERS = {
  'prepare: images': ('images', 'OPEN', '.png'),
  'prepare: shards': ('out', 'WRITE', 'array_record'),
  'predict: checkpoint': ('model', 'OPEN', 'model.npz'),
  'predict: image': ('images', 'OPEN', '.png'),
  'convert: model': ('out', 'WRITE', 'safetensors'),
  'selftrain: images': ('images', 'OPEN', '.png'),
  'study: a run': ('out', 'MKDIR', 'checkpoints'),
}


@pytest.fixture(scope='module')
def files(tmp_path_factory, golden):
  """A folder of images, and a model."""
  folder = tmp_path_factory.mktemp('files')
  rng = np.random.default_rng(0)
  for name in 'ab':
    (folder / 'images' / name).mkdir(parents=True)
    for number in range(32):
      pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
      Image.fromarray(pixels).save(folder / 'images' / name / f'{number}.png')
  (folder / 'model').mkdir()
  shutil.copy(path(golden, 'a_vit_token'), folder / 'model' / 'model.npz')
  return folder


@pytest.fixture
def mount(files, tmp_path):
  """mount(name, operation, text): the mount of the folder of this name, which stalls, and all folders by name."""
  mounts = []
  folders = {name: files / name for name in ('images', 'model')}
  for name in ('run', 'out'):
    folders[name] = tmp_path / name
    folders[name].mkdir()

  def make(stalls: str, operation: str, text: str) -> tuple[Stalling, dict[str, pathlib.Path]]:
    try:
      mounts.append(Stalling(folders[stalls], tmp_path / 'mount', operation, text))
    except OSError as error:
      pytest.skip(f'this machine does not mount: {error}')
    return mounts[-1], folders | {stalls: tmp_path / 'mount'}

  yield make
  for mounted in mounts:
    mounted.close()


def family(pid: int) -> list[int]:
  """A process and what it has started."""
  children = pathlib.Path(f'/proc/{pid}/task').glob('*/children')
  return [
    pid,
    *(one for file in children for child in file.read_text().split() for one in family(int(child))),
  ]


def alive(pid: int) -> bool:
  try:
    return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
  except OSError:
    return False


def assert_ends(started: fork_server.Command, stalling: Stalling) -> None:
  """SIGTERM ends a command that hangs, and all its processes."""
  assert stalling.hangs_within(HUNG), started.communicate(1)
  time.sleep(1)  # the request reaches the mount a little before the process sleeps
  processes = family(started.pid)
  started.send_signal(signal.SIGTERM)
  code = started.wait(HUNG)
  wait_until(lambda: not any(map(alive, processes)))
  stderr = started.communicate()[1]
  assert code in (-signal.SIGTERM, 128 + signal.SIGTERM, 75) and 'Traceback' not in stderr


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize('case', TRAINING)
def test_sigterm_ends_training_while_a_mount_stalls(case, mount, tmp_path):
  stalling, places = mount(*TRAINING[case])
  (tmp_path / 'config.py').write_text(CONFIG)
  source = f'--config.data.source=folder:{places["images"]}'
  flags = ('--config=config.py', source, f'--workdir={places["run"]}')
  assert_ends(fork_server.start('vit_jax.main', *flags, cwd=tmp_path), stalling)


@pytest.mark.nightly(but='predict: image')
@pytest.mark.slow
@pytest.mark.parametrize('case', OTHERS)
def test_sigterm_ends_a_command_while_a_mount_stalls(case, mount, tmp_path):
  stalling, places = mount(*OTHERS[case])
  model = places['model'] / 'model.npz'
  (tmp_path / 'study.py').write_text(STUDY)
  command = {
    'prepare': ('vit_jax.prepare', places['images'], places['out'] / 'shards'),
    'predict': ('vit_jax.predict', f'--checkpoint={model}', places['images']),
    'convert': ('vit_jax.convert', model, places['out'] / 'hf', '--format=hf'),
    'selftrain': (
      *('vit_jax.selftrain', f'--teachers={model}', f'--workdir={places["out"]}/labelled'),
      places['images'],
    ),
    'study': ('vit_jax.study', 'study.py', f'--workdir={places["out"]}/study', '--jobs=1'),
  }[case.partition(':')[0]]
  assert_ends(fork_server.start(*map(str, command), cwd=tmp_path), stalling)
