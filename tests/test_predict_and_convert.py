"""The real commands in processes of their own: predict on photographs, convert there and back."""

import csv
import dataclasses
import io
import json
import os
import pathlib
import subprocess
import sys

import fork_server
import jax
import numpy as np
import pytest
from PIL import Image
from released_files import assert_same, path

import vit_jax
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import average, formats

ROOT = pathlib.Path(__file__).parents[1]


def run(command: str, *arguments, cwd: pathlib.Path) -> subprocess.CompletedProcess:
  return fork_server.run(f'vit_jax.{command}', *map(str, arguments), cwd=cwd)


def done(command: str, *arguments, cwd: pathlib.Path) -> str:
  """What a command that must succeed prints."""
  result = run(command, *arguments, cwd=cwd)
  assert result.returncode == 0, result.stderr
  return result.stdout


def said(result: subprocess.CompletedProcess) -> str:
  """The last line of one that ends with exit code 2 and no traceback."""
  assert result.returncode == 2, result.stdout + result.stderr
  assert 'Traceback' not in result.stderr
  return result.stderr.strip().splitlines()[-1]


@pytest.fixture
def photos(tmp_path):
  """A folder with colour and grayscale files, one below it, and a text."""
  rng = np.random.default_rng(0)
  folder = tmp_path / 'photos'
  (folder / 'below').mkdir(parents=True)
  for name, shape in (('a.png', (40, 30, 3)), ('b.jpg', (50, 60)), ('below/c.jpg', (33, 77, 3))):
    Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / name)
  (folder / 'notes.txt').write_text('no image')
  return folder


def expected(file: pathlib.Path, images: list[pathlib.Path]) -> np.ndarray:
  """(images, classes): softmax of the logits."""
  model = vit_jax.load(file)
  logits = np.asarray(model(model.preprocess([Image.open(image) for image in images])), np.float64)
  return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


@pytest.mark.slow
def test_predict_prints_the_most_probable_classes_of_load(golden, tmp_path, photos):
  file = path(golden, 'a_vit_token')
  flags = (f'--checkpoint={file}', photos, photos / 'a.png', '--top=3', '--batch_size=2')
  rows = list(csv.DictReader(io.StringIO(done('predict', *flags, cwd=tmp_path))))
  images = [photos / 'a.png', photos / 'b.jpg', photos / 'below/c.jpg', photos / 'a.png']
  assert [row['image'] for row in rows[::3]] == [str(image) for image in images]
  for image, shares in enumerate(expected(file, images)):
    best = np.argsort(-shares)[:3]
    assert [int(row['class']) for row in rows[3 * image : 3 * image + 3]] == best.tolist()
    found = [float(row['probability']) for row in rows[3 * image : 3 * image + 3]]
    np.testing.assert_allclose(found, shares[best], atol=1e-4)
  assert [row['rank'] for row in rows[:3]] == ['1', '2', '3']


@pytest.mark.slow
def test_predict_names_classes_and_leaves_damaged_images_out(golden, tmp_path, photos):
  (photos / 'bad.jpg').write_text('nonsense')
  (tmp_path / 'names').write_text('\n'.join(f'class number {number}' for number in range(10)))
  flags = (f'--checkpoint={path(golden, "b_vit_gap")}', '--format=json', '--class_names=names', 'photos')
  result = run('predict', *flags, cwd=tmp_path)
  assert '1 of 4 images could not be read' in said(result)
  assert 'bad.jpg is not an image' in result.stderr
  entries = json.loads(result.stdout)
  assert [entry['image'] for entry in entries] == ['photos/a.png', 'photos/b.jpg', 'photos/below/c.jpg']
  for entry in entries:
    assert len(entry['predictions']) == 5
    for prediction in entry['predictions']:
      assert prediction['name'] == f'class number {prediction["class"]}'


@pytest.mark.slow
def test_predict_ends_quietly_when_its_reader_has_seen_enough(golden, tmp_path, photos):
  checkpoint = path(golden, 'a_vit_token')
  command = [sys.executable, '-m', 'vit_jax.predict', f'--checkpoint={checkpoint}', str(photos)]
  environment = dict(os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS='cpu', XLA_FLAGS='')
  pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
  with subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **pipes) as process:
    process.stdout.close()
    assert 'Traceback' not in process.stderr.read()
  assert process.returncode == 0


@pytest.mark.slow
def test_predict_refuses_wrong_arguments_in_one_sentence(golden, tmp_path):
  checkpoint = f'--checkpoint={path(golden, "b_vit_gap")}'
  assert 'Name the images' in said(run('predict', checkpoint, cwd=tmp_path))
  assert 'There is no image nothing.jpg' in said(run('predict', checkpoint, 'nothing.jpg', cwd=tmp_path))


@pytest.mark.slow
def test_convert_to_a_run_and_back_keeps_every_bit(golden, tmp_path):
  source = path(golden, 'c_vit_token_rep32')
  assert 'Wrote run: 82,986 parameters, 10 classes.' in done(
    'convert', source, 'run', '--format=run', cwd=tmp_path
  )
  done('convert', 'run', 'back.npz', cwd=tmp_path)
  assert_same(source, tmp_path / 'back.npz')


@pytest.mark.slow
def test_convert_averages_checkpoints(golden, tmp_path):
  """By NumPy; a checkpoint of another model is refused, and one that means something else by the same parameters."""
  first = path(golden, 'c_vit_token_rep32')
  pretrained = formats.read(first)
  doubled = dataclasses.replace(pretrained, params=jax.tree.map(lambda leaf: 2 * leaf, pretrained.params))
  formats.FORMATS['run']().write(doubled, tmp_path / 'other')
  done('convert', first, 'other', 'mean', '--format=run', '--average', cwd=tmp_path)
  for own, mean in zip(
    *map(jax.tree.leaves, (pretrained.params, formats.read(tmp_path / 'mean').params)), strict=True
  ):
    np.testing.assert_allclose(mean, 1.5 * own, rtol=1e-6)
  wrong = run('convert', first, path(golden, 'b_vit_gap'), 'x', '--format=run', '--average', cwd=tmp_path)
  assert 'Checkpoint 2 is of another model than the first' in said(wrong)
  architecture = pretrained.architecture
  pooled = dataclasses.replace(architecture.model, pool='gap', class_token=True)
  for change in ({'architecture': dataclasses.replace(architecture, model=pooled)}, {'link': 'sigmoid'}):
    with pytest.raises(UserError, match='Checkpoint 2 is of another model'):
      average.of(pretrained, [dataclasses.replace(pretrained, **change)])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['{b_vit_gap}', 'x'], 'say --format=run or --format=hf'),
    (
      ['{b_vit_gap}', 'x.onnx'],
      'x.onnx would be an ONNX file, which vit_jax does not write; choose another name',
    ),
    (
      ['{b_vit_gap}', 'x', '--format=vit'],
      "cannot hold this model: it has pool 'token' and this model 'gap'",
    ),
    (['{b_vit_gap}', 'x', '--format=run', '--weights=ema'], 'only a training run may have weights'),
    (['{b_vit_gap}', 'x', '--format=run', '--heads=2'], 'which knows its heads; leave heads out'),
  ],
)
def test_convert_names_what_is_wrong(golden, tmp_path, arguments, message):
  files = {'b_vit_gap': path(golden, 'b_vit_gap')}
  assert message in said(run('convert', *(argument.format(**files) for argument in arguments), cwd=tmp_path))
  assert not (tmp_path / 'x').exists()


@pytest.mark.slow
def test_convert_prints_the_kind_of_folder_that_it_chose_and_why(golden, tmp_path):
  result = run('convert', path(golden, 'b_vit_gap'), 'folder', '--format=hf', cwd=tmp_path)
  assert result.returncode == 0, result.stderr
  chosen = result.stdout.splitlines()[0]
  assert (
    "Of hf, the kind 'timm' is written; not 'vit', since it has pool 'token' and this model 'gap'" in chosen
  )
  assert 'timm has no name for a model of these sizes' in result.stderr
