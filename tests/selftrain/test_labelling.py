"""Predictions belong to the teachers and images that they were made of, also if several commands make them."""

import concurrent.futures
import dataclasses
import os
import shutil
import threading

import jax.numpy as jnp
import numpy as np
import pytest
import teachers
from flax import nnx
from image_bytes import png
from scipy import special

from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.loaded_model import LoadedModel
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


def test_all_images_of_a_folder_are_labelled_however_it_is_named(photos):
  folder = str(photos.parent)
  for name in (folder, f'folder:{folder}', f'folder:{folder}:all'):
    assert len(opened([name])) == IMAGES


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


class Certain(nnx.Module):
  """Says the same of every image."""

  def __init__(self, logits):
    self.head = nnx.Linear(1, len(logits), rngs=nnx.Rngs(0))
    self.head.bias[...] = jnp.asarray(logits)

  def __call__(self, images):
    return jnp.broadcast_to(self.head.bias[...], (len(images), len(self.head.bias[...])))


def test_teachers_with_classes_in_another_order_are_averaged_by_name(photos, monkeypatch):
  known = {'one': ((3.0, 2.0, 0.0), ('ant', 'bee', 'cat')), 'two': ((2.5, 0.0, 1.0), ('cat', 'ant', 'bee'))}
  loaded = lambda name: LoadedModel(Certain(known[name][0]), Preprocess((8, 8), 1), known[name][1])
  monkeypatch.setattr(labelling, 'load', loaded)
  found = labelling.Teachers(['one', 'two'], 8).predict(opened([str(photos)]), range(IMAGES))
  one, two = (special.softmax(logits) for logits, _ in known.values())
  mean = (one + two[[1, 2, 0]]) / 2
  order = np.argsort(-mean)
  np.testing.assert_array_equal(found.classes, np.tile(order, (IMAGES, 1)))
  np.testing.assert_allclose(found.probabilities[0], mean[order], rtol=1e-5)


@pytest.mark.nightly(but='file')
@pytest.mark.slow
@pytest.mark.parametrize('what', ['preprocessing', 'newer step', 'file'])
def test_teacher_that_changed_in_its_place_is_refused_by_its_name(tmp_path, photos, first, what):
  """Predictions are kept with what tells models apart; a copy with other times is the same teacher."""
  place, source = tmp_path / ('teacher.npz' if what == 'file' else 'teacher'), opened([str(photos)])
  before = formats.read(first)
  kind = FORMATS['npz' if what == 'file' else 'run']()

  def put(pretrained):
    shutil.rmtree(place, ignore_errors=True)
    place.unlink(missing_ok=True)
    kind.write(pretrained, place)

  def taught():
    claim(tmp_path / 'run', source, labelling.Teachers([first, str(place)], 8))

  put(before)
  taught()
  put(before)
  taught()
  after = changed(before, what)
  if what == 'newer step':
    kind.write(after, tmp_path / 'other')
    shutil.copytree(tmp_path / 'other/checkpoints/0', place / 'checkpoints/1')
  else:
    put(after)
  with pytest.raises(
    UserError, match=rf'run has predictions of other contents of {place}: .*; choose another'
  ):
    taught()


@pytest.mark.usefixtures('in_this_process')
@pytest.mark.parametrize('change', ['overwritten', 'larger', 'removed'])
@pytest.mark.parametrize('kind', ['files', 'folder', 'tfds'])
def test_images_that_changed_in_their_place_are_refused(tmp_path, photos, kind, change):
  place = {'files': f'{photos}', 'folder': f'folder:{photos.parent}:all', 'tfds': f'tfds:{tmp_path}/set'}[
    kind
  ]

  def labelled():
    if kind == 'tfds':  # prepared again, with other times: the same images are the same set
      shutil.rmtree(tmp_path / 'set', ignore_errors=True)
      run.prepare(str(photos.parent), str(tmp_path / 'set'), run.Options(Shrinking()))
    claim(tmp_path / 'run', opened([place]))

  labelled()
  labelled()
  photo = photos / '7.png'
  before = photo.stat()
  if change == 'removed':
    photo.unlink()
  elif change == 'larger':
    photo.write_bytes(png(np.random.default_rng(0).integers(0, 256, (30, 30))))
  else:
    photo.write_bytes(png(np.full((8, 8), 77)))
    os.utime(photo, ns=(before.st_atime_ns, before.st_mtime_ns + 1000))
    assert photo.stat().st_size == before.st_size
  with pytest.raises(UserError, match=r'run has predictions of other (contents of the )?images: .*; choose'):
    labelled()


def at_once(command, arguments):
  """What the command returns or its UserError says for each of the arguments, all of which begin at the same time."""
  barrier = threading.Barrier(len(arguments))

  def called(argument):
    barrier.wait()
    try:
      return command(argument)
    except UserError as error:
      return str(error)

  with concurrent.futures.ThreadPoolExecutor(len(arguments)) as pool:
    return list(pool.map(called, arguments))


@pytest.mark.parametrize('attempt', range(2))
@pytest.mark.parametrize('parts', [[(k, 8) for k in range(8)], [(0, 1)] * 4 + [(0, 2), (1, 2)] * 2], ids=str)
def test_commands_that_begin_at_once_label_everything(tmp_path, photos, monkeypatch, parts, attempt):
  """The parts of a whole, or some that overlap; files are written whole."""
  monkeypatch.setattr(labelling, '_CHUNK', 2)
  source = opened([str(photos)])
  labelled = lambda part: claim(tmp_path / 'run', source).label(Seer(), source, part, lambda done: None)
  assert at_once(labelled, parts) == [None] * 8
  assert claim(tmp_path / 'run', source).read().classes[:, 0].tolist() == list(range(IMAGES))


@pytest.mark.parametrize('attempt', range(2))
def test_of_commands_that_begin_at_once_with_other_teachers_only_one_goes_on(tmp_path, photos, attempt):
  source = opened([str(photos)])
  teachers = [Seer([f'teacher{number}']) for number in range(6)]
  said = at_once(lambda teacher: bool(claim(tmp_path / 'run', source, teacher)), teachers)
  assert said.count(True) == 1
  assert sum('has predictions of other teachers' in str(one) for one in said) == 5
