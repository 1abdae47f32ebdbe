"""The command `evaluate` on every kind of checkpoint and data, against predictions that are counted by hand."""

import base64
import collections
import csv
import dataclasses
import hashlib
import html.parser
import io
import json
import os
import pathlib
import shutil

import bucket_data
import commands
import fork_server
import numpy as np
import pytest
import run_steps
import tiny
from bucket_emulators import places
from PIL import Image
from released_files import write_folder, write_random, write_run

import vit_jax
from vit_jax import config as c
from vit_jax.checkpoint.manager import Manager
from vit_jax.config import ViTConfig
from vit_jax.data import sources
from vit_jax.pretrained import formats
from vit_jax.training import loop

CLASSES = ('light', 'dark', 'grey')  # not in the folders' order
SPLIT, FLAT = 'images', 'flat'


@pytest.fixture(scope='module')
def place(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder with images (split, flat, prepared) and one model as a file without names, a run and two folders."""
  folder = tmp_path_factory.mktemp('evaluate')
  bucket_data.write_images(folder / SPLIT)
  shutil.copytree(folder / SPLIT / 'test', folder / FLAT)
  bucket_data.prepare(folder / SPLIT, str(folder / 'prepared' / '1.0.0'))
  model = ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2)
  write_random(model, folder / 'model.npz', image_size=(8, 8), num_classes=3)
  (folder / 'names.txt').write_text('\n'.join(CLASSES))
  named = dataclasses.replace(formats.read(folder / 'model.npz'), class_names=CLASSES)
  write_run(named, folder / 'run')
  return folder


def evaluated(place: pathlib.Path, *words: str) -> dict:
  """The report of an evaluation that succeeds."""
  result = fork_server.run('vit_jax.evaluate', *words, cwd=place)
  assert result.returncode == 0, result.stdout + result.stderr
  return json.loads((folder_of(place, result.stdout) / 'evaluation.json').read_text())


def folder_of(place: pathlib.Path, stdout: str) -> pathlib.Path:
  (wrote,) = [line for line in stdout.splitlines() if line.startswith('Wrote ')]
  return place / wrote.removeprefix('Wrote ').partition(':')[0]


def by_hand(checkpoint: pathlib.Path, files: list[pathlib.Path], **options: int) -> np.ndarray:
  """float64 (images, 3): the softmax of each image's logits."""
  model = vit_jax.load(checkpoint, **options)
  logits = np.asarray(model(model.preprocess([Image.open(file) for file in files])), np.float64)
  return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def checksums(folder: pathlib.Path) -> dict[str, tuple[str, float]]:
  """File -> its digest and time of change."""
  files = [file for file in sorted(folder.rglob('*')) if file.is_file()]
  return {str(file): (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime) for file in files}


@pytest.mark.nightly(but='npz-flat|run-tfds|timm')
@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'data'),
  [
    *(('npz', FLAT), ('npz', 'prepared/1.0.0'), ('run', SPLIT), ('run', 'tfds:./prepared/1.0.0:test')),
    *(('timm', SPLIT), ('hf', FLAT)),
  ],
)
def test_numbers_of_every_checkpoint_on_every_kind_of_data_are_those_counted_by_hand(place, kind, data):
  words, checkpoint = [], {'npz': 'model.npz', 'run': 'run'}.get(kind, kind)
  if kind == 'npz':
    words = ['--class_names=names.txt']
  elif not (place / checkpoint).exists():
    write_folder(formats.read(place / 'run'), place / checkpoint, kind)
  before = checksums(place / checkpoint)
  report = evaluated(place, f'--checkpoint={checkpoint}', *words, data)
  assert checksums(place / checkpoint) == before
  files = sorted((place / FLAT).rglob('*.png'))
  shares = by_hand(place / checkpoint, files)
  truth = np.array([CLASSES.index(file.parent.name) for file in files])
  prediction = shares.argmax(axis=1)
  assert report['images'] == len(files) == 18
  assert report['metrics']['accuracy'] == np.mean(prediction == truth)
  np.testing.assert_allclose(
    report['metrics']['loss'], -np.log(shares[np.arange(18), truth]).mean(), rtol=1e-4
  )
  pairs = collections.Counter((CLASSES[t], CLASSES[p]) for t, p in zip(truth, prediction, strict=True))
  assert {(e['class'], e['taken_for']): e['examples'] for e in report['confusion']} == pairs


@pytest.mark.nightly(but='merging')
@pytest.mark.slow
@pytest.mark.parametrize('option', ['max_patches=3', 'token_merging=1'])
def test_options_of_tokens_are_those_of_load(place, option):
  report = evaluated(place, '--checkpoint=run', f'--{option}', FLAT)
  files = sorted((place / FLAT).rglob('*.png'))
  name, number = option.split('=')
  shares = by_hand(place / 'run', files, **{name: int(number)})
  truth = np.array([CLASSES.index(file.parent.name) for file in files])
  assert report['metrics']['accuracy'] == np.mean(shares.argmax(axis=1) == truth)
  np.testing.assert_allclose(
    report['metrics']['loss'], -np.log(shares[np.arange(18), truth]).mean(), rtol=1e-4
  )
  assert report[name] == int(number)


@pytest.mark.nightly
@pytest.mark.slow
def test_wrong_images_are_listed_the_most_confident_first_and_shown(place):
  result = fork_server.run('vit_jax.evaluate', '--checkpoint=run', FLAT, '--output=seen', cwd=place)
  assert result.returncode == 0, result.stderr
  files = sorted((place / FLAT).rglob('*.png'))
  shares = by_hand(place / 'run', files)
  expected = []
  for file, row in zip(files, shares, strict=True):
    truth = CLASSES.index(file.parent.name)
    if row.argmax() != truth:
      expected.append(
        (str(file.relative_to(place)), CLASSES[truth], CLASSES[row.argmax()], row.max(), row[truth])
      )
  expected.sort(key=lambda wrong: -wrong[3])
  found = list(csv.DictReader((place / 'seen/wrong.csv').open()))
  assert [tuple(row.values())[:3] for row in found] == [row[:3] for row in expected] and 0 < len(
    expected
  ) < 18
  numbers = [(float(row['probability']), float(row['truth_probability'])) for row in found]
  np.testing.assert_allclose(numbers, [row[3:] for row in expected], rtol=1e-4)
  assert f'Accuracy {1 - len(expected) / 18:.2%} of 18 images (95% interval ' in result.stdout
  page = Page((place / 'seen/wrong.html').read_text())
  assert len(page.pictures) == len(expected)
  first = Image.open(place / expected[0][0])
  shown = np.asarray(page.pictures[0].resize(first.size, Image.Resampling.NEAREST), float)
  assert abs(shown - np.asarray(first, float)).mean() < 25  # of 255: a JPEG of noise


class Page(html.parser.HTMLParser):
  """The embedded pictures and the names of a page, which has no scripts and loads nothing."""

  def __init__(self, text: str):
    super().__init__()
    self.pictures: list[Image.Image] = []
    self.names: list[str] = []
    self._tag = ''
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    assert tag not in ('script', 'link', 'iframe', 'object', 'marquee')
    self._tag = tag
    values = dict(attrs)
    if tag == 'img':
      kind, _, content = values['src'].partition(',')
      assert kind == 'data:image/jpeg;base64' and values.keys() == {'src', 'alt'}
      self.pictures.append(Image.open(io.BytesIO(base64.b64decode(content, validate=True))))

  def handle_data(self, data):
    if self._tag == 'bdi':
      self.names.append(data)


@pytest.mark.slow
def test_names_of_classes_and_files_are_text_on_the_page(place, tmp_path):
  """Names that would be tags, and bytes that are no text."""
  names = ('<marquee>&amp;', 'b"\'><script>', 'cé')
  named = dataclasses.replace(formats.read(place / 'model.npz'), class_names=names)
  write_run(named, tmp_path / 'run')
  for number, name in enumerate(names):
    (tmp_path / 'data' / name).mkdir(parents=True)
    for index, image in enumerate(sorted((place / FLAT).rglob('*.png'))[number::3]):
      shutil.copy(
        image, os.fsencode(tmp_path / 'data' / name) + f'/<img src=x>{index}'.encode() + b'\xff.png'
      )
  result = fork_server.run('vit_jax.evaluate', '--checkpoint=run', 'data', '--output=out', cwd=tmp_path)
  assert result.returncode == 0, result.stderr
  page = Page((tmp_path / 'out/wrong.html').read_text(encoding='utf-8'))
  rows = list(csv.DictReader((tmp_path / 'out/wrong.csv').open(encoding='utf-8')))
  assert len(page.pictures) == len(rows) > 0
  assert {row['truth'] for row in rows} <= set(page.names)
  assert all('\\udcff.png' in row['file'] and row['file'] in page.names for row in rows)


@pytest.mark.slow
def test_image_that_cannot_be_read_is_named_counted_and_left_out(place, tmp_path):
  shutil.copytree(place / FLAT, tmp_path / 'data')
  (tmp_path / 'data/dark/bad.png').write_text('nonsense')
  result = fork_server.run('vit_jax.evaluate', f'--checkpoint={place / "run"}', 'data', cwd=tmp_path)
  commands.assert_said(result, '1 of 19 images could not be read')
  assert 'data/dark/bad.png is not an image' in result.stderr
  report = json.loads((folder_of(tmp_path, result.stdout) / 'evaluation.json').read_text())
  assert report['images'] == 18 and ['data/dark/bad.png' in each for each in report['unreadable']] == [True]


@pytest.mark.nightly
@pytest.mark.slow
def test_an_earlier_evaluation_stays(place, tmp_path):
  words = (f'--checkpoint={place / "run"}', str(place / FLAT))
  first = evaluated(tmp_path, *words)
  before = checksums(tmp_path / 'evaluations')
  assert evaluated(tmp_path, *words) == first
  after = checksums(tmp_path / 'evaluations')
  assert before.items() < after.items() and len(list((tmp_path / 'evaluations').iterdir())) == 2
  again = fork_server.run('vit_jax.evaluate', *words, '--output=evaluations/run-flat', cwd=tmp_path)
  commands.assert_said(again, 'evaluations/run-flat is not empty')


@pytest.fixture(scope='module')
def trained(place: pathlib.Path) -> pathlib.Path:
  """A run that says that it was trained on the flat folder, by a relative path."""
  config = c.Config(
    total='4 steps',
    batch_size=6,
    schedule=c.ScheduleConfig(warmup='1 steps'),
    model=ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2),
    data=c.DataConfig(source=f'folder:{FLAT}', image_size=(8, 8), val_fraction=0.3),
    evaluators={'own': c.ClassificationEvaluatorConfig(split='val', crop='central', resize=10)},
  )
  images = sources.open_training(dataclasses.replace(config.data, source=f'folder:{place / FLAT}'), 0)
  meta = {
    'config': c.as_json(config),
    'class_names': sorted(CLASSES),
    'examples': len(images),
    'data_version': images.version(),
    'directory': str(place),
  }
  with Manager(place / 'trained/checkpoints', config.checkpoint) as manager:
    manager.save(3, {'params': formats.read(place / 'model.npz').params}, meta)
  return place / 'trained'


@pytest.mark.slow
def test_a_split_that_is_named_is_counted_where_the_data_has_none_to_test_on(place):
  bucket_data.prepare(place / FLAT, str(place / 'whole' / '1.0.0'))
  words = ('--checkpoint=model.npz', '--class_names=names.txt')
  named = [
    ('whole/1.0.0', '--split=train[50%:]'),
    ('tfds:./whole/1.0.0:train[50%:]',),
    ('whole/1.0.0', '--split=train'),
  ]
  assert [evaluated(place, *words, *data)['images'] for data in named] == [9, 9, 18]


@pytest.mark.slow
def test_only_what_a_run_was_not_trained_on_is_counted_with_or_without_its_folders_name(
  place, trained, tmp_path
):
  options = c.DataConfig(val_fraction=0.3)
  held_out = sources.open_source(f'folder:{place / FLAT}', 'val', data=options)
  assert 0 < len(held_out) < 18
  without = evaluated(place, '--checkpoint=trained')
  assert without['images'] == len(held_out)
  assert evaluated(place, '--checkpoint=trained', FLAT) == without | {'data': f'folder:{FLAT} val'}
  assert evaluated(place, '--checkpoint=trained', FLAT, '--split=all')['images'] == 18
  # Elsewhere, beside a copy of the folder, and beside another folder of the same name.
  shutil.copytree(place / FLAT, tmp_path / FLAT, copy_function=shutil.copyfile)  # with other times of change
  for data in ((), (str(place / FLAT),), (FLAT,)):
    assert evaluated(tmp_path, f'--checkpoint={trained}', *data)['images'] == len(held_out)
  for number in range(4):
    shutil.copy(
      next((tmp_path / FLAT / CLASSES[0]).iterdir()), tmp_path / FLAT / CLASSES[0] / f'new_{number}.png'
    )
  other = fork_server.run('vit_jax.evaluate', f'--checkpoint={trained}', FLAT, cwd=tmp_path)
  assert f'All images of folder:{FLAT} are counted: the model was trained on' in other.stdout
  assert evaluated(tmp_path, f'--checkpoint={trained}', FLAT)['images'] == 22
  by_mode = fork_server.run('vit_jax.main', '--workdir=trained', '--mode=eval', cwd=place)
  assert by_mode.returncode == 0, by_mode.stderr
  of_mode = json.loads((place / 'trained/evaluations/step_3/own.json').read_text())
  assert of_mode['accuracy_interval'] == without['accuracy_interval']
  assert of_mode['confusion'] == without['confusion']


@pytest.mark.nightly
@pytest.mark.slow
def test_classes_are_matched_by_name_and_what_is_not_known_is_refused(place, tmp_path):
  some = tmp_path / 'some'
  shutil.copytree(place / FLAT, some)
  shutil.rmtree(some / 'grey')
  checkpoint = f'--checkpoint={place / "run"}'
  result = fork_server.run('vit_jax.evaluate', checkpoint, 'some', cwd=tmp_path)
  assert result.returncode == 0 and '1 outputs have no class in the data (grey)' in result.stdout, (
    result.stderr
  )
  (some / 'light').rename(some / 'Light')
  for words, said in (
    ([checkpoint, 'some'], 'does not have 1 of the 2 classes (Light); evaluate data of its classes'),
    ([f'--checkpoint={place / "model.npz"}', 'some'], 'has 3 classes without names, and the data 2 others'),
    ([checkpoint], 'Name the images behind the flags'),
    ([checkpoint, 'some', 'others'], 'There are 2 sources of images (some, others); give one.'),
    ([checkpoint, './none'], 'There is no folder none'),
    ([checkpoint, 'folder:some:val', '--split=all'], 'names a split, and --split=all another'),
  ):
    commands.assert_said(fork_server.run('vit_jax.evaluate', *words, cwd=tmp_path), said)
  assert not list((tmp_path / 'evaluations').glob('*-2')), 'a folder for what was refused'


@pytest.mark.nightly
@pytest.mark.slow
def test_data_in_a_bucket_is_counted_as_that_of_the_folder(place, tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  with places('gs', own=True) as bucket:
    bucket.put_folder(place / 'prepared/1.0.0', 'data/1.0.0')
    bucket.put_folder(place / 'run', 'runs/mine')
    report = evaluated(place, '--checkpoint=gs://bucket/runs/mine', 'gs://bucket/data/1.0.0', '--split=test')
  local = evaluated(place, '--checkpoint=run', f'{SPLIT}/test')
  assert report['images'] == 18 and report['metrics'] == pytest.approx(local['metrics'])


@pytest.mark.slow
def test_tta_is_the_mean_of_the_logits_of_an_image_and_its_mirror_image(place):
  files = sorted((place / FLAT).rglob('*.png'))
  model = vit_jax.load(place / 'run')
  images = [np.asarray(Image.open(file).convert('RGB')) for file in files]
  mirrored = [np.ascontiguousarray(image[:, ::-1]) for image in images]
  logits = sum(np.asarray(model(model.preprocess(each)), np.float64) for each in (images, mirrored)) / 2
  shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  result = fork_server.run('vit_jax.predict', '--checkpoint=run', '--tta', '--top=3', FLAT, cwd=place)
  rows = list(csv.DictReader(io.StringIO(result.stdout)))
  found = np.zeros_like(shares)
  for row in rows:
    found[files.index(place / row['image']), int(row['class'])] = float(row['probability'])
  np.testing.assert_allclose(found, shares, atol=2e-5)
  truth = [CLASSES.index(file.parent.name) for file in files]
  report = evaluated(place, '--checkpoint=run', '--tta', FLAT)
  assert report['tta'] and report['metrics']['accuracy'] == np.mean(shares.argmax(axis=1) == truth)


@pytest.mark.slow
def test_predict_says_how_many_images_are_below_the_threshold(place):
  files = sorted((place / FLAT).rglob('*.png'))
  shares = by_hand(place / 'run', files).max(axis=1)
  threshold = float(np.sort(shares)[6:8].mean())
  result = fork_server.run(
    'vit_jax.predict', '--checkpoint=run', f'--threshold={threshold!r}', FLAT, cwd=place
  )
  assert result.returncode == 0
  assert result.stderr.strip().splitlines()[-1].startswith('7 of 18 images (38.9%) have no class of a prob')


@pytest.mark.parametrize(
  ('name', 'spec'),
  [
    ('digits', 'digits'),
    ('folder:here', 'folder:here'),
    ('cifar10', 'tfds:cifar10'),
    ('gs://bucket/data', 'tfds:gs://bucket/data'),
    ('photos', 'folder:photos'),
    ('photos/', 'folder:photos/'),
    ('./missing', 'folder:./missing'),
    ('made', 'tfds:./made'),
    ('made/1.0.0', 'tfds:./made/1.0.0'),
    ('a:b', 'a:b'),
  ],
)
def test_data_is_called_as_people_call_it(tmp_path, monkeypatch, name, spec):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'photos/cat').mkdir(parents=True)
  (tmp_path / 'made/1.0.0').mkdir(parents=True)
  (tmp_path / 'made/1.0.0/dataset_info.json').write_text('{}')
  assert sources.spec_of(name) == spec


@pytest.mark.slow
def test_a_run_is_evaluated_as_its_own_evaluator_did_whatever_others_are_called(tmp_path):
  """At that one's patches and cut, with one of features before it, and one on other data."""
  cut = {'crop': 'central', 'resize': 12}
  config = c.Config(
    total='20 steps',
    batch_size=32,
    model=tiny.options(pool='gap', patch=4, patch_sizes=(2, 4)),
    data=c.DataConfig(source='digits', image_size=(8, 8), channels=1),
    evaluators={
      'few': c.FewShotEvaluatorConfig(shots=(1,), crop='resize'),
      'old': c.ClassificationEvaluatorConfig(source='digits', split='train', crop='resize'),
      'val': c.ClassificationEvaluatorConfig(patch=2, **cut),
    },
  )
  loop.train(config, tmp_path / 'run')
  measured = run_steps.logged(tmp_path / 'run')[-1]
  report = evaluated(tmp_path, '--checkpoint=run')
  assert report['metrics']['accuracy'] == pytest.approx(measured['val/accuracy'])
  assert report['metrics']['loss'] == pytest.approx(measured['val/loss'], rel=1e-4)
  preprocess = vit_jax.load(tmp_path / 'run').preprocess
  assert (preprocess.crop, preprocess.resize) == (cut['crop'], cut['resize'])
