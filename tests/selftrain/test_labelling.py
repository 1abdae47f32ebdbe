"""Predictions belong to the teachers and images that they were made of, also if several commands make them."""

import concurrent.futures
import dataclasses
import json
import os
import shutil
import threading

import numpy as np
import pytest
import teachers
from image_bytes import png

from vit_jax.foundation.errors import UserError
from vit_jax.prepare import run
from vit_jax.prepare.images import Shrinking
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS
from vit_jax.selftrain import labelling
from vit_jax.selftrain.choosing import Predictions
from vit_jax.selftrain.unlabelled import opened

IMAGES = 12


@dataclasses.dataclass(frozen=True)
class Seer:
  """In the place of `labelling.Teachers`: sees in image number n class n."""

  checkpoints: list[str] = dataclasses.field(default_factory=lambda: ['seer'])
  digests: list[str] = dataclasses.field(default_factory=lambda: ['0'])

  def predict(self, source, numbers):
    classes = np.array(numbers, np.int32)[:, None]
    return Predictions(classes, np.full((len(numbers), 50_000), 0.5, np.float32))


@pytest.fixture
def photos(tmp_path):
  folder = tmp_path / 'photos/rose'
  folder.mkdir(parents=True)
  for number in range(IMAGES):
    (folder / f'{number}.png').write_bytes(png(np.full((8, 8), number)))
  return folder


def claim(workdir, source, teacher=None):
  return labelling.Chunks(workdir, teacher or Seer(), source)


@pytest.fixture(scope='module')
def first(tmp_path_factory):
  return teachers.write(tmp_path_factory.mktemp('teachers') / 'first')


def changed(pretrained, what):
  """Another model: one parameter differs by a bit, or the preprocessing."""
  if what == 'preprocessing':
    return dataclasses.replace(pretrained, preprocess=dataclasses.replace(pretrained.preprocess, std=(0.25,)))
  params = {**pretrained.params, 'head': {**pretrained.params['head']}}
  kernel = params['head']['kernel'].copy()
  kernel.flat[-1] = np.nextafter(kernel.flat[-1], np.float32(9))
  params['head']['kernel'] = kernel
  return dataclasses.replace(pretrained, params=params)


@pytest.mark.slow
@pytest.mark.parametrize('what', ['preprocessing', 'newer step', 'file'])
def test_teacher_that_changed_in_its_place_is_refused_by_its_name(tmp_path, photos, first, what):
  """Predictions are kept with what tells models apart; a copy with other times is the same teacher."""
  place, source = tmp_path / ('teacher.npz' if what == 'file' else 'teacher'), opened([str(photos)])
  before = formats.read(first)
  after = changed(before, 'preprocessing' if what == 'preprocessing' else 'parameters')
  kind = FORMATS['npz' if what == 'file' else 'run']()

  def put(pretrained):
    if what == 'newer step' and place.exists():
      kind.write(pretrained, tmp_path / 'other')
      shutil.copytree(tmp_path / 'other/checkpoints/0', place / 'checkpoints/1')
      return
    shutil.rmtree(place, ignore_errors=True)
    place.unlink(missing_ok=True)
    kind.write(pretrained, place)

  def taught():
    return labelling.Teachers([first, str(place)], 8)

  put(before)
  claim(tmp_path / 'run', source, taught())
  if what != 'newer step':
    put(before)
  claim(tmp_path / 'run', source, taught())
  put(after)
  with pytest.raises(
    UserError, match=rf'run has predictions of {place} before it changed .*; choose another'
  ):
    claim(tmp_path / 'run', source, taught())


def overwritten(path):
  """Another image of the same size in bytes at a path."""
  before = path.stat()
  content = bytearray(path.read_bytes())
  content[-20] ^= 1
  path.write_bytes(content)
  os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1000))
  assert path.stat().st_size == before.st_size


@pytest.mark.usefixtures('in_this_process')
@pytest.mark.parametrize('change', ['overwritten', 'larger', 'removed'])
@pytest.mark.parametrize('kind', ['files', 'folder', 'tfds'])
def test_images_that_changed_in_their_place_are_refused(tmp_path, photos, kind, change):
  def prepared():
    shutil.rmtree(tmp_path / 'set', ignore_errors=True)
    run.prepare(str(photos.parent), str(tmp_path / 'set'), run.Options(Shrinking()))

  def images():
    if kind == 'files':
      return opened([str(photos)])
    return opened([f'folder:{photos.parent}:all' if kind == 'folder' else f'tfds:{tmp_path}/set'])

  if kind == 'tfds':
    prepared()
  claim(tmp_path / 'run', images())
  if kind == 'tfds':
    prepared()  # again, with other times: the same images
  claim(tmp_path / 'run', images())
  photo = photos / '7.png'
  if change == 'overwritten':
    overwritten(photo)
    if kind == 'tfds':  # whose images are checked
      photo.write_bytes(png(np.full((8, 8), 77)))
  elif change == 'larger':
    photo.write_bytes(png(np.random.default_rng(0).integers(0, 256, (30, 30))))
  else:
    photo.unlink()
  if kind == 'tfds':
    prepared()
  with pytest.raises(
    UserError, match=r'run has predictions (of images before|with images ).*; choose another'
  ):
    claim(tmp_path / 'run', images())


def test_predictions_of_an_earlier_version_are_taken_over_with_a_warning(tmp_path, photos, caplog):
  """From then on changes are noticed; other paths are refused at once, as before."""
  source, workdir = opened([str(photos)]), tmp_path / 'run'
  chunks = claim(workdir, source)
  chunks.label(Seer(), source, (0, 1), lambda done: None)
  settings = json.loads((workdir / 'selftrain.json').read_text())
  (workdir / 'selftrain.json').write_text(
    json.dumps({name: settings[name] for name in ('teachers', 'images')})
  )
  with pytest.raises(UserError, match=r"has predictions with teachers \['seer'\], not \['other'\]; choose"):
    claim(workdir, source, Seer(['other']))
  assert 'earlier version' not in caplog.text
  claim(workdir, source)
  assert 'run has predictions of an earlier version' in caplog.text
  assert 'if one of them has changed meanwhile, choose another --workdir' in caplog.text
  assert json.loads((workdir / 'selftrain.json').read_text()) == settings
  caplog.clear()
  claim(workdir, source)
  assert not caplog.text
  with pytest.raises(UserError, match='has predictions of seer before it changed'):
    claim(workdir, source, Seer(digests=['1']))


@pytest.mark.parametrize('parts', [[(k, 8) for k in range(8)], [(0, 1)] * 4 + [(0, 2), (1, 2)] * 2], ids=str)
def test_commands_that_begin_at_once_label_everything(tmp_path, photos, monkeypatch, parts):
  """The parts of a whole, or some that overlap; files are written whole."""
  monkeypatch.setattr(labelling, '_CHUNK', 2)
  source = opened([str(photos)])
  for attempt in range(4):
    workdir, barrier = tmp_path / f'run{attempt}', threading.Barrier(len(parts))

    def command(part, workdir=workdir, barrier=barrier):
      barrier.wait()
      claim(workdir, source).label(Seer(), source, part, lambda done: None)

    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
      list(pool.map(command, parts))
    assert claim(workdir, source).read().classes[:, 0].tolist() == list(range(IMAGES))


def test_of_commands_that_begin_at_once_with_other_teachers_only_one_goes_on(tmp_path, photos):
  source = opened([str(photos)])
  for attempt in range(4):
    workdir, barrier = tmp_path / f'run{attempt}', threading.Barrier(6)

    def command(number, workdir=workdir, barrier=barrier):
      barrier.wait()
      try:
        claim(workdir, source, Seer([f'teacher{number}']))
      except UserError as error:
        return str(error)
      return ''

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
      said = list(pool.map(command, range(6)))
    assert said.count('') == 1
    assert sum('has predictions with teachers' in one for one in said) == 5
