"""Teachers label images: which are chosen, what is written, and that a stop changes none of it."""

import hashlib

import fork_server
import jax
import numpy as np
import pytest
import teachers
from PIL import Image

import vit_jax
from vit_jax.checkpoint.lease import Lease
from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.sources import open_source, open_training
from vit_jax.foundation.errors import UserError
from vit_jax.prepare import shards
from vit_jax.selftrain import choosing, labelling, samples
from vit_jax.selftrain.choosing import Choice, Predictions
from vit_jax.selftrain.unlabelled import opened

NAMES = ('ant', 'bee', 'cat', 'dog', 'elk', 'fox')


@pytest.mark.parametrize('per_class', [None, 1, 7, 1000])
@pytest.mark.parametrize('confidence', [0.0, 0.5, 1.1])
def test_images_are_chosen_as_one_by_one(confidence, per_class):
  """Among equal ones the first; an image that cannot be read never."""
  rng = np.random.default_rng(0)
  classes = rng.integers(-1, 4, (200, 3)).astype(np.int32)
  probabilities = np.round(rng.uniform(size=(200, 3)), 1).astype(np.float32)
  expected = []
  for label in range(4):
    own = np.flatnonzero((classes[:, 0] == label) & (probabilities[:, 0] >= confidence)).tolist()
    own.sort(key=lambda number: (-probabilities[number, 0], number))
    expected += own[:per_class]
  chosen = choosing.choose(Predictions(classes, probabilities), Choice(confidence, per_class))
  assert chosen.tolist() == sorted(expected)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """Two teachers of six classes in different orders, and 23 photographs, one of which is damaged."""
  place = tmp_path_factory.mktemp('selftrain')
  teachers.write(place / 'one', channels=3, num_classes=6, class_names=NAMES)
  scaled = Preprocess((12, 8), 3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
  turned = tuple(NAMES[number] for number in (3, 0, 5, 1, 4, 2))
  sizes = {'image_size': (12, 8), 'channels': 3, 'num_classes': 6}
  teachers.write(place / 'two', **sizes, preprocess=scaled, class_names=turned)
  rng = np.random.default_rng(0)
  for number in range(23):
    file = place / f'photos/folder{number % 2}/{number:02}.{"png" if number % 3 else "jpg"}'
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels // (1 + number % 5)).save(file)
  (place / 'photos/folder1/05.png').write_bytes(b'no image')
  return place


def command(place, *flags, code=0):
  result = fork_server.run('vit_jax.selftrain', *flags, cwd=place)
  assert result.returncode == code, result.stdout + result.stderr
  return result.stdout + result.stderr


@pytest.fixture(scope='module')
def labelled(place):
  """What the command says of both teachers; the data set is in 'labelled'."""
  return command(place, '--teachers=one,two', '--workdir=labelled', '--top=3', '--batch_size=8', 'photos')


def records(workdir):
  """The records that training reads, and the names of the classes."""
  data = DataConfig(max_labels=3, label_weights=True)
  source = open_source(f'tfds:{workdir / samples.DATA_SET}', 'train', data=data)
  return [source[number] for number in range(len(source))], source.class_names


@pytest.mark.slow
def test_soft_labels_are_the_mean_of_the_teachers_probabilities_by_the_names_of_classes(place, labelled):
  """Of the image that is in the record, with each teacher's preprocessing; the damaged one is named and left out."""
  found, names = records(place / 'labelled')
  files = sorted(path for path in (place / 'photos').rglob('*') if path.is_file() and path.name != '05.png')
  assert sorted(record.image for record in found) == sorted(path.read_bytes() for path in files)
  assert names == NAMES  # also those that no image has
  by_image = {path.read_bytes(): path for path in files}
  models = [vit_jax.load(place / name) for name in ('one', 'two')]
  for record in found:
    with Image.open(by_image[record.image]) as image:
      each = [np.asarray(model.probabilities(model(model.preprocess([image]))))[0] for model in models]
    mean = np.mean([each[0], [each[1][models[1].class_names.index(name)] for name in NAMES]], axis=0)
    order = np.argsort(-mean)[:3]
    np.testing.assert_allclose(mean[record.label], mean[order], atol=2e-6)  # classes may tie up to rounding
    np.testing.assert_allclose(record.weights, mean[order], atol=2e-6)
  assert '05.png' in labelled and '1 cannot be read' in labelled
  assert f'Chose {len(files)} of 23 images' in labelled
  assert '--config.data.max_labels=3 --config.data.label_weights=True' in labelled
  assert not list((place / 'labelled').glob('samples*'))


@pytest.mark.nightly
@pytest.mark.slow
def test_same_command_again_changes_nothing_and_other_teachers_or_one_at_the_same_time_are_refused(
  place, labelled
):
  before = digests(place / 'labelled')
  flags = ['--teachers=one,two', '--workdir=labelled', '--top=3', 'photos']
  chosen = next(line for line in labelled.splitlines() if line.startswith('Chose '))
  assert chosen in command(place, *flags) and digests(place / 'labelled') == before
  said = command(place, *flags, '--teachers=one', code=2)
  assert "has predictions of other teachers: ['one', 'two'], not ['one']; choose another --workdir." in said
  said = command(place, *flags, '--confidence=0.2', code=2)
  assert 'was prepared with source' in said and 'or remove that one' in said
  with Lease(place / 'labelled'):
    said = command(place, *flags, code=2)
  assert 'labelled is in use by process' in said and 'stop it, or choose another --workdir' in said


def digests(workdir):
  """Name -> digest of the predictions and of the records."""
  found = [*workdir.glob('predictions/*'), *workdir.glob(f'{samples.DATA_SET}/*.array_record*')]
  return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def labels(place, workdir, parts=((0, 1),)):
  """As the command does: labels each part, then writes the data set."""
  source = opened([str(place / 'photos')])
  teacher = labelling.Teachers([str(place / 'one')], 8)
  chunks = labelling.Chunks(workdir, teacher, source)
  for part in parts:
    chunks.label(teacher, source, part, lambda done: None)
  samples.prepare(source, chunks.read(), Choice(top=2), teacher.class_names, workdir)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures('in_this_process')
def test_labelling_stopped_anywhere_or_in_parts_gives_the_same_bytes(place, tmp_path, monkeypatch):
  monkeypatch.setattr(labelling, '_CHUNK', 5)
  monkeypatch.setattr(samples, '_SHARD', 4)
  labels(place, tmp_path / 'whole/run')
  expected = digests(tmp_path / 'whole/run')
  assert len(expected) == 6

  labels(place, tmp_path / 'parts/run', [(2, 3), (0, 3), (1, 3)])
  assert digests(tmp_path / 'parts/run') == expected

  def stopping(function, calls):
    left = iter(range(calls))

    def wrapped(*arguments, **options):
      if next(left, None) is None:
        raise RuntimeError('stopped')
      return function(*arguments, **options)

    return wrapped

  predict, savez = (labelling.Teachers, 'predict', 2), (labelling.np, 'savez', 1)
  for owner, name, calls in (predict, savez, (samples, '_write', 2), (shards, 'write', 0)):
    with monkeypatch.context() as patch:
      patch.setattr(owner, name, stopping(getattr(owner, name), calls))
      with pytest.raises(RuntimeError, match='stopped'):
        labels(place, tmp_path / 'stopped/run')
  labels(place, tmp_path / 'stopped/run')
  assert digests(tmp_path / 'stopped/run') == expected


@pytest.mark.nightly
@pytest.mark.slow
def test_student_reads_labelled_images_beside_those_of_its_teacher(place):
  """The digits' own labels for one half, a teacher's for the other."""
  teachers.write(place / 'digits', class_names=tuple('0123456789'))
  command(place, '--teachers=digits', '--workdir=pseudo', '--top=2', 'digits:train[50%:]')
  data = DataConfig(
    mixture=(('digits:train[:50%]', 1.0), (f'tfds:{place}/pseudo/1.0.0', 1.0)),
    **{'image_size': (8, 8), 'channels': 1, 'max_labels': 2, 'label_weights': True},
  )
  source = open_training(data, 0)
  one, other = source[0], source[len(source) - 1]
  assert source.class_names == tuple('0123456789') and one.weights is None
  assert len(other.label) <= 2 and 0 < other.weights.sum() <= 1
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  batch = TrainPipeline(source, data, batch_size=16, seed=0, sharding=sharding).batch(0)
  total = np.asarray(batch['weight']).sum(axis=1)
  assert (total == 1).sum() == 8 and ((total > 0) & (total < 1)).sum() == 8


@pytest.mark.slow
def test_wrong_inputs_are_refused_with_the_remedy(place, tmp_path):
  teachers.write(tmp_path / 'five', channels=3, num_classes=5)
  teachers.write(tmp_path / 'renamed', channels=3, num_classes=6, class_names=(*NAMES[1:], 'gnu'))
  one = str(place / 'one')
  with pytest.raises(UserError, match=r'has 5 classes by softmax, and .* has 6 by softmax; choose teachers'):
    labelling.Teachers([one, str(tmp_path / 'five')], 8)
  with pytest.raises(
    UserError, match=r'does not have 1 of the 6 classes \(ant\); choose teachers of the same'
  ):
    labelling.Teachers([one, str(tmp_path / 'renamed')], 8)
  with pytest.raises(UserError, match="'photos' stands behind a source; name one source"):
    opened(['digits', 'photos'])
  flags = ['--teachers=one', '--workdir=other', 'photos']
  assert '--part=4/4 is not a part; write 0/4' in command(place, *flags, '--part=4/4', code=2)
  said = command(place, *flags, '--confidence=1', code=2)
  assert 'Of 23 images 1 cannot be read, and no other reaches --confidence=1; lower it' in said


@pytest.mark.slow
def test_damaged_predictions_are_named_with_the_remedy(place, tmp_path):
  source = opened([str(place / 'photos')])
  teacher = labelling.Teachers([str(place / 'one')], 8)
  chunks = labelling.Chunks(tmp_path / 'run', teacher, source)
  file = tmp_path / 'run/predictions/000000.npz'
  np.savez(file, classes=np.zeros((23, 1), np.int32), probabilities=np.ones((23, 1), np.float32))
  assert len(chunks.read().classes) == 23
  for damage in (file.read_bytes()[:100], b'PK nonsense', b''):
    file.write_bytes(damage)
    with pytest.raises(
      UserError, match=r'000000.npz is damaged .*; remove it and start the same command again'
    ):
      chunks.read()
  (tmp_path / 'run/selftrain.json').write_text('{')
  with pytest.raises(UserError, match=r'selftrain.json is damaged .*; choose another --workdir'):
    labelling.Chunks(tmp_path / 'run', teacher, source)
