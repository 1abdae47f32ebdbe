"""--mode=eval: of models that no run has trained, and of folders that no model was trained on."""

import dataclasses
import json
import os

import numpy as np
import pytest
import teachers
from PIL import Image

import vit_jax
from vit_jax import config as c
from vit_jax.data import sources
from vit_jax.evaluation.base import EMA_SUFFIX
from vit_jax.foundation.errors import UserError
from vit_jax.training import evaluate_checkpoint, resume

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_a_model_that_convert_wrote_is_evaluated_by_any_config_of_its_model(tmp_path):
  teachers.write(tmp_path / 'run', class_names=tuple('0123456789'))
  stored = resume.stored_config(tmp_path / 'run')
  config = c.Config(
    total='10 epochs',
    model=stored.model,
    data=stored.data,
    evaluators={'test': c.ClassificationEvaluatorConfig(source='digits')},
    schedule=c.ScheduleConfig(warmup='1 epochs'),
  )
  scores = evaluate_checkpoint.evaluate_newest(config, tmp_path / 'run')
  assert 0 <= scores['test/accuracy'] <= 1 and np.isfinite(scores['test/loss'])
  assert not any(EMA_SUFFIX in name for name in scores)


@pytest.fixture
def held_out(tmp_path):
  """A folder with 45 photographs of three classes, and no folders of splits."""
  rng = np.random.default_rng(0)
  for number in range(45):
    folder = tmp_path / 'held_out' / ('ant', 'bee', 'cat')[number % 3]
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f'{number}.png')
  return tmp_path / 'held_out'


def of_folder(folder, workdir_):
  """The config of a checkpoint, to evaluate 'val' of a folder."""
  stored = resume.stored_config(workdir_)
  return c.Config(
    model=stored.model,
    data=dataclasses.replace(stored.data, source=f'folder:{folder}'),
    evaluators={'val': c.ClassificationEvaluatorConfig(split='val')},
  )


def test_all_images_of_a_held_out_folder_are_counted_and_the_training_report_stays(
  held_out, tmp_path, capsys
):
  """By the names of classes, which the checkpoint has in another order; the count is that of the files."""
  names = ('cat', 'ant', 'gnu', 'bee')
  run = tmp_path / 'run'
  teachers.write(run, channels=3, num_classes=4, class_names=names)
  (run / 'report').mkdir()
  (run / 'report/val.json').write_text('of the training run')
  (run / 'metrics.jsonl').write_text('of the training run')
  model, right = vit_jax.load(run), 0
  files = sorted(held_out.rglob('*.png'))
  for file in files:
    logits = np.asarray(model(model.preprocess([np.asarray(Image.open(file))])))[0]
    right += names[logits.argmax()] == file.parent.name
  config = of_folder(held_out, run)
  for folder in ('step_0', 'step_0-2'):
    scores = evaluate_checkpoint.evaluate_newest(config, run)
    assert scores['val/accuracy'] == right / 45
    said = capsys.readouterr().out
    assert f'val/accuracy {right / 45:.2%} of 45 images' in said
    assert f'Evaluator val: folder:{held_out} all, 45 images' in said
    assert f'All images of folder:{held_out} are counted: the model was trained on digits.' in said
    report = json.loads((run / 'evaluations' / folder / 'val.json').read_text())
    assert report['metrics']['accuracy'] == right / 45
    assert sum(each['examples'] for each in report['classes']) == report['images'] == len(files) == 45
  assert (run / 'report/val.json').read_text() == 'of the training run'
  assert (run / 'metrics.jsonl').read_text() == 'of the training run'
  assert sorted(path.name for path in run.iterdir()) == [
    'checkpoints',
    'evaluations',
    'metrics.jsonl',
    'report',
  ]


def test_a_checkpoint_without_names_is_evaluated_by_number_where_the_classes_are_as_many(
  held_out, tmp_path, capsys
):
  teachers.write(tmp_path / 'three', channels=3, num_classes=3)
  teachers.write(tmp_path / 'four', channels=3, num_classes=4)
  evaluate_checkpoint.evaluate_newest(of_folder(held_out, tmp_path / 'three'), tmp_path / 'three')
  assert (
    'its outputs are the classes of the data by number, since only one of the two' in capsys.readouterr().out
  )
  with pytest.raises(UserError, match=r'The head has 4 classes without names, and the data 3 others'):
    evaluate_checkpoint.evaluate_newest(of_folder(held_out, tmp_path / 'four'), tmp_path / 'four')


@pytest.mark.parametrize(
  ('spec', 'trained', 'split'),
  [
    ('folder:held_out', 'folder:other', 'all'),
    ('folder:held_out', 'digits', 'all'),
    ('folder:held_out', 'folder:./held_out/', 'val'),
    ('folder:held_out', 'folder:held_out:train[:50%]', 'val'),
    ('folder:held_out:val', 'folder:other', 'val'),
    ('folder:.', 'folder:other', 'val'),
    ('digits', 'folder:other', 'val'),
  ],
)
def test_a_part_is_held_out_only_of_the_folder_that_was_trained_on(
  held_out, spec, trained, split, monkeypatch
):
  monkeypatch.chdir(held_out.parent)
  (held_out.parent / 'val').mkdir()  # which makes '.' a folder with splits
  asked = c.DataConfig(fold='1/5', val_fraction=0.3, image_size=(8, 8))  # now, on the command line
  for mixture in ((), (('digits', 1.0), (trained, 1.0))):
    options = c.DataConfig(source=trained, mixture=mixture, fold='2/5', val_fraction=0.2)
    known = spec in ('folder:held_out', 'digits') and split == 'val' and (mixture or spec != 'digits')
    opened = dataclasses.replace(asked, fold='2/5' if known else None, val_fraction=0.2 if known else 0.3)
    assert sources.evaluated(spec, 'val', asked, options) == (split, opened)


def test_places_of_a_run_are_where_it_was_started(tmp_path):
  for name in ('flat', 'own'):
    (tmp_path / name).mkdir()
  data = c.DataConfig(source='folder:flat:train[:50%]', mixture=(('tfds:./own', 1.0), ('folder:/a', 2.0)))
  placed = sources.placed(data, str(tmp_path))
  assert placed.source == f'folder:{tmp_path}/flat:train[:50%]'
  assert placed.mixture == ((f'tfds:{tmp_path}/own', 1.0), ('folder:/a', 2.0))
  for source in ('digits', 'tfds:cifar10', 'tfds:a/b:train[:50%]', 'vtab:dtd', 'folder:~/photos'):
    expected = source.replace('~', os.path.expanduser('~'))
    assert sources.placed(c.DataConfig(source=source), str(tmp_path)).source == expected
  for directory in (None, str(tmp_path / 'moved')):  # of an early version; of a project that was moved since
    assert sources.placed(data, directory) == data
