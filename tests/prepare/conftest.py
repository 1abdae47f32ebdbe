"""What the tests of preparing data share."""

import pathlib
import shutil
import tarfile
import zipfile

import numpy as np
import pytest
from image_bytes import jpeg

from vit_jax.prepare import processes, shards
from vit_jax.prepare.listing import Listing


@pytest.fixture(scope='session')
def pets(tmp_path_factory) -> pathlib.Path:
  """A folder with train/ and val/ of three classes; 66 noisy JPEGs, 3.5 MiB."""
  root = tmp_path_factory.mktemp('sources') / 'pets'
  rng = np.random.default_rng(0)
  for split, count in (('train', 18), ('val', 4)):
    for pet in ('cat', 'dog', 'ant'):
      folder = root / split / pet
      folder.mkdir(parents=True)
      for number in range(count):
        pixels = rng.integers(0, 256, (160, 160 + number, 3))
        (folder / f'{number}.jpg').write_bytes(jpeg(pixels, quality=98))
  return root


@pytest.fixture(scope='session')
def pets_tar(pets) -> pathlib.Path:
  """The same in a tar, within a folder; the last files first."""
  path = pets.with_suffix('.tar')
  with tarfile.open(path, 'w') as tar:
    for file in sorted(pets.rglob('*.jpg'), reverse=True):
      tar.add(file, pathlib.Path('downloads/pets') / file.relative_to(pets))
  return path


@pytest.fixture(scope='session')
def pets_zip(pets) -> pathlib.Path:
  path = pets.with_suffix('.zip')
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    for file in pets.rglob('*.jpg'):
      archive.write(file, file.relative_to(pets))
  return path


@pytest.fixture
def copy_of_pets(pets, tmp_path) -> pathlib.Path:
  return pathlib.Path(shutil.copytree(pets, tmp_path / 'pets'))


@pytest.fixture
def in_this_process(monkeypatch) -> list[shards.Job]:
  """Shards are written here, for starting processes takes seconds; gives those written."""
  written = []

  def run(jobs, workers, done):
    for job in jobs:
      done(shards.write(job))
      written.append(job)

  monkeypatch.setattr(processes, 'run', run)
  return written


@pytest.fixture
def listed(tmp_path):
  """listed(source, **options): {name: (split, *labels)} of a source's images, whose names must differ."""

  def run(source, **options):
    scratch = tmp_path / 'scratch'
    scratch.mkdir(exist_ok=True)
    images = list(Listing(str(source), scratch, str(tmp_path / 'work'), **options))
    assert len({image.name for image in images}) == len(images)
    return {image.name: (image.split, *image.labels) for image in images}

  return run
