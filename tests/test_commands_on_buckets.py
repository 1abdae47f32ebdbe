"""Every command on a run in an emulated bucket: it works, or says in one sentence what to do and leaves no files."""

import pathlib

import bucket_data
import commands
import fork_server
import jax
import numpy as np
import pytest
from bucket_emulators import Place, places
from released_files import write_random, write_run

from vit_jax.config import ViTConfig
from vit_jax.foundation import buckets
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import bucket_output, formats
from vit_jax.pretrained.base import Pretrained
from vit_jax.visualize import through_training

RUN, DATA, PHOTO = 'gs://bucket/runs/mine', 'gs://bucket/data/1.0.0', 'images/test/dark/0.png'
PIXELS = np.linspace(-1, 1, 8 * 8 * 3, dtype=np.float32).reshape(1, 8, 8, 3)


@pytest.fixture(scope='module')
def place():
  with places('gs', own=True) as found:
    yield found


@pytest.fixture(scope='module')
def folder(place: Place, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder with images and a run, which is in the bucket too."""
  found = tmp_path_factory.mktemp('commands_on_buckets')
  bucket_data.write_images(found / 'images')
  model = ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2)
  file = write_random(model, found / 'model.npz', image_size=(8, 8), num_classes=3)
  write_run(formats.read(file), found / 'run')
  place.put_folder(found / 'run', 'runs/mine')
  (found / 'config.py').write_text(commands.CONFIG.replace('digits', f'tfds:{DATA}'))
  return found


@pytest.fixture(autouse=True)
def cache(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setenv('XDG_CACHE_HOME', str(folder / '.cache'))


def assert_same(found: Pretrained, expected: Pretrained) -> None:
  jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def run(folder: pathlib.Path, module: str, *flags: str):
  return fork_server.run(f'vit_jax.{module}', *flags, cwd=folder)


def done(folder: pathlib.Path, module: str, *flags: str) -> str:
  """What a command that succeeds writes to stdout."""
  result = run(folder, module, *flags)
  assert result.returncode == 0, result.stdout + result.stderr
  return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize('checkpoint', [f'{RUN}/', f'{RUN}/checkpoints', f'{RUN}/checkpoints/0'])
def test_address_of_a_run_its_checkpoints_or_a_step_loads_the_run(folder, checkpoint):
  assert_same(formats.read(checkpoint), formats.read(folder / 'run'))


@pytest.mark.slow
def test_kept_steps_of_a_run_are_found_and_loaded(place: Place, folder):
  for step in (0, 2):
    place.put_folder(folder / 'run' / 'checkpoints' / '0', f'runs/steps/checkpoints/{step}')
  place.put('runs/steps/checkpoints/3/params/half_written', b'x')
  assert through_training.chosen_steps('gs://bucket/runs/steps', ['all']) == [0, 2]
  models = list(through_training.models('gs://bucket/runs/steps', [0, 2], None, None))
  assert [step for step, _ in models] == [0, 2]
  np.testing.assert_array_equal(models[1][1](PIXELS), models[0][1](PIXELS))
  with pytest.raises(UserError, match='--steps is of a training run, and gs://bucket/none has no checkpoi'):
    through_training.chosen_steps('gs://bucket/none', ['all'])


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, kind, last',
  [
    ('a.npz', 'npz', 'a.npz'),
    ('a_run', 'run', '_CHECKPOINT_METADATA'),
    ('folder', 'hf', 'model.safetensors'),
  ],
)
def test_model_is_written_to_a_bucket_and_what_makes_it_a_checkpoint_last(
  folder, monkeypatch, name, kind, last
):
  written, upload = [], buckets.Bucket.upload

  def recorded(bucket: buckets.Bucket, path: pathlib.Path, address: str) -> None:
    upload(bucket, path, address)
    written.append(path.name)

  monkeypatch.setattr(buckets.Bucket, 'upload', recorded)
  address, pretrained = f'gs://bucket/written/{name}', formats.read(folder / 'run')
  with bucket_output.place_to_write(address) as local:
    formats.written_by(kind, pretrained)[0].write(pretrained, local)
  assert_same(formats.read(address), pretrained)
  assert not pathlib.Path(local).exists() and written.pop() == last


REFUSALS = [
  ('predict', [f'--checkpoint={RUN}', 'gs://bucket/photos'], 'gs://bucket/photos is an address, and images'),
  ('predict', ['--checkpoint=gs://bucket/none', PHOTO], 'There is no gs://bucket/none, neither'),
  ('predict', ['--checkpoint=gs://', PHOTO], 'gs:// names no bucket; write one behind'),
  ('convert', [RUN, 'gs://bucket/data', '--format=run'], 'gs://bucket/data is not empty; choose another'),
  ('convert', [RUN, 'https://host/a.npz'], 'https://host/a.npz is neither a path nor in a bucket'),
  ('visualize', [f'--checkpoint={RUN}', '--out=gs://bucket/seen', PHOTO], '--out=gs://bucket/seen is an'),
  ('selftrain', [f'--teachers={RUN}', '--workdir=gs://bucket/a', 'images'], '--workdir=gs://bucket/a is an'),
  ('transfer', [f'--checkpoint={RUN}', '--workdir=gs://bucket/a'], '--workdir=gs://bucket/a is an address'),
  ('study', ['poster', '--workdir=gs://bucket/a'], '--workdir=gs://bucket/a is an address'),
  ('compare', [RUN, 'gs://bucket/none'], 'is not the workdir of a run that has logged something'),
  ('prepare', ['images', 'gs://none/data/1.0.0'], 'There is no bucket gs://none; make it first'),
  ('main', ['--config=config.py', '--workdir=gs://none/run'], 'There is no bucket gs://none; make it first'),
  ('main', ['--config=config.py', '--workdir=https://host/run'], 'nor in a bucket (gs://…, s3://…)'),
  ('main', ['--mode=eval', '--workdir=gs://bucket/none'], 'gs://bucket/none'),
  (
    'main',
    ['--config=config.py', '--workdir=gs://bucket/x', '--config.data.source=folder:gs://bucket/photos'],
    'prepare it once with: vit_jax prepare gs://bucket/photos',
  ),
]


@pytest.mark.slow
@pytest.mark.parametrize('module, flags, sentence', REFUSALS)
def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing_behind(
  place, folder, module, flags, sentence
):
  place.put('data/something', b'x')
  before = sorted(folder.iterdir())
  commands.assert_said(run(folder, module, *flags), sentence)
  assert set(folder.iterdir()) <= {*before, folder / '.cache'}


@pytest.mark.nightly
def test_commands_work_on_a_run_in_a_bucket(place: Place, folder):
  address = 'gs://bucket/runs/trained'
  done(folder, 'prepare', 'images', DATA)
  done(folder, 'main', '--config=config.py', f'--workdir={address}')
  assert 'dark' in done(folder, 'predict', f'--checkpoint={address}', '--top=3', PHOTO)
  assert 'Wrote gs://bucket/trained.npz' in done(folder, 'convert', address, 'gs://bucket/trained.npz')
  done(folder, 'visualize', f'--checkpoint={address}', '--out=seen', '--steps=all', PHOTO)
  assert list((folder / 'seen').glob('*.gif'))
  done(folder, 'selftrain', f'--teachers={address}', '--workdir=labelled', f'tfds:{DATA}:train')
  assert (folder / 'labelled/1.0.0/dataset_info.json').exists()
  done(
    folder,
    'transfer',
    f'--checkpoint={address}',
    '--workdir=table',
    f'--suite=tfds:{DATA},fewshot:tfds:{DATA}',
    *('--image_size=8', '--batch_size=16', '--steps=2', '--rates=0.01', '--seeds=1'),
  )
  assert DATA in (folder / 'table/table.md').read_text()
  done(folder, 'main', '--config=config.py', '--workdir=tuned', f'--config.init.checkpoint={address}')
  done(folder, 'compare', address, 'tuned')
  photos = place.put_folder(folder / 'images', 'photos')
  assert 'test 18, train 72 images, 3 classes' in done(folder, 'prepare', photos, 'gs://bucket/again/1.0.0')
