"""The notebook: what is stored in it, and every cell run by a real kernel, also from a wheel in a fresh venv."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import nbclient
import nbformat
import numpy as np
import pytest
from execute_notebook import NOTEBOOK, ROOT, execute, load, parameters
from PIL import Image
from processes import HUNG
from released_files import write_random
from sklearn.datasets import load_sample_image

import vit_jax
from vit_jax.config import ViTConfig

NAMES = [f'thing number {number}' for number in range(10)]
UNREACHABLE = 'http://127.0.0.1:9/names.txt'  # nobody listens on that port
PICTURES = {'curves': 2, 'predict': 1, 'attention': 2, 'layers': 4}
PUBLISHED = {'published': 1, 'results': 2}  # those of the second part


@pytest.fixture
def values(tmp_path) -> dict[str, str | int]:
  """Parameters for a run without a network: a small checkpoint, and two classes of 30 images."""
  model = ViTConfig(variant='custom', patch=32, width=32, mlp_dim=48, depth=2, heads=4)
  checkpoint = write_random(model, tmp_path / 'model.npz', image_size=(64, 64), num_classes=len(NAMES))
  rng = np.random.default_rng(1)
  for name, low in (('bright', 150), ('dark', 0)):
    (tmp_path / 'photos' / name).mkdir(parents=True)
    for number in range(30):
      pixels = rng.integers(low, low + 100, (50, 70, 3), dtype=np.uint8)
      Image.fromarray(pixels).save(tmp_path / 'photos' / name / f'{number:02}.jpg')
  (tmp_path / 'names.txt').write_text('\n'.join(NAMES))
  return {
    'INSTALL': '',
    'EPOCHS': 1,
    'CHECKPOINT': str(checkpoint),
    'CLASS_NAMES': (tmp_path / 'names.txt').as_uri(),
    'FOLDER': str(tmp_path / 'photos'),
    'STEPS': 20,
  }


def cell_of(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
  (cell,) = (cell for cell in notebook.cells if cell.id == name)
  return cell


def text(notebook: nbformat.NotebookNode, name: str) -> str:
  outputs = cell_of(notebook, name).outputs
  return ''.join(output.text for output in outputs if output.output_type == 'stream')


def pictures(notebook: nbformat.NotebookNode, name: str) -> int:
  return sum('image/png' in output.get('data', ()) for output in cell_of(notebook, name).outputs)


def error(notebook: nbformat.NotebookNode, name: str) -> str:
  """What a cell that failed shows in the place of a traceback."""
  (output,) = (output for output in cell_of(notebook, name).outputs if output.output_type == 'error')
  return '\n'.join(output.traceback)


def assert_complete(notebook: nbformat.NotebookNode, folder: pathlib.Path, checkpoint: str | int) -> None:
  """Every cell did what it is for."""
  assert {name: pictures(notebook, name) for name in PICTURES | PUBLISHED} == PICTURES | PUBLISHED
  assert re.search(r'Done after \d+ steps: test/accuracy \d\d\.\d\d%', text(notebook, 'digits'))
  model = vit_jax.load(checkpoint)
  logits = np.asarray(model(model.preprocess([load_sample_image('flower.jpg')]))[0])
  lines = text(notebook, 'published').splitlines()
  assert [line[8:] for line in lines] == [NAMES[number] for number in np.argsort(-logits)[:5]]
  assert 'reinitialised: head/bias (2,)' in text(notebook, 'train')
  assert 'Done after 20 steps' in text(notebook, 'train')
  run = folder / 'place/runs/mine'
  metrics = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
  assert metrics[-1]['step'] == 20 and metrics[-1]['test/accuracy'] == 1
  assert vit_jax.load(run).class_names == ('bright', 'dark')


def test_stored_notebook_was_run_from_top_to_bottom_and_has_its_pictures():
  notebook = nbformat.read(NOTEBOOK, as_version=4)
  nbformat.validate(notebook)
  cells = [cell for cell in notebook.cells if cell.cell_type == 'code']
  assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
  assert not any(output.output_type == 'error' for cell in cells for output in cell.outputs)
  assert {name: pictures(notebook, name) for name in PICTURES} == PICTURES
  accuracy = re.findall(r'Done after .*test/accuracy ([\d.]+)%', text(notebook, 'digits'))
  assert float(accuracy[0]) > 90
  content = NOTEBOOK.read_text()
  assert len(content) < 600_000
  assert not re.search(r'/(work|tmp|root|home)/', content)


def test_stored_parameters_are_published_places():
  values = dict(line.split(' = ') for line in parameters(load()).source.splitlines())
  assert values['INSTALL'] == "'vit_jax'"
  assert values['CHECKPOINT'] == "'imagenet21k+imagenet2012/ViT-B_16'"
  assert values['CLASS_NAMES'].startswith("'https://")


@pytest.mark.slow
def test_every_cell_runs(values, tmp_path):
  notebook = load()
  execute(notebook, tmp_path / 'here', **values)
  assert_complete(notebook, tmp_path / 'here', values['CHECKPOINT'])
  stored = nbformat.read(NOTEBOOK, as_version=4)  # says what a run says today, but for the numbers
  assert shapes(text(stored, 'digits')) == shapes(text(notebook, 'digits'))


def shapes(lines: str) -> set[str]:
  """The lines without their numbers and paths."""
  return {re.sub(r'/\S+|\d[\d.,:]*', '#', line) for line in lines.splitlines()}


@pytest.mark.slow
def test_second_part_is_skipped_in_one_sentence_without_a_network(tmp_path):
  notebook = load(['parameters', 'install', 'setup', 'published', 'train', 'results'])
  execute(notebook, tmp_path / 'here', INSTALL='', CLASS_NAMES=UNREACHABLE)
  for name in ('published', 'train', 'results'):
    assert text(notebook, name).startswith('Skipped: there is no network here')
    assert text(notebook, name).count('\n') == 1 and not pictures(notebook, name)


@pytest.mark.slow
def test_cell_that_fails_stops_the_rest_with_one_sentence(values, tmp_path, monkeypatch):
  notebook = load(['parameters', 'install', 'setup', 'published', 'train', 'results'])
  values['FOLDER'] = str(tmp_path / 'nowhere')
  with pytest.raises(nbclient.exceptions.CellExecutionError):
    execute(notebook, tmp_path / 'here', **values)
  assert error(notebook, 'train').startswith('vit_jax.main ended with exit code 2')
  assert str(tmp_path / 'nowhere') in text(notebook, 'train').splitlines()[-1]
  assert cell_of(notebook, 'results').execution_count is None

  monkeypatch.setenv('PIP_NO_INDEX', '1')
  notebook = load(['parameters', 'install', 'setup'])
  with pytest.raises(nbclient.exceptions.CellExecutionError):
    execute(notebook, tmp_path / 'there', INSTALL='no/such/vit_jax.whl')
  said = error(notebook, 'install')
  assert said.startswith("INSTALL = 'no/such/vit_jax.whl' cannot be installed (ERROR: ")
  assert said.endswith('set it to an address or a wheel.') and '\n' not in said
  assert cell_of(notebook, 'setup').execution_count is None


@pytest.mark.slow
def test_wrong_input_is_one_sentence_in_ipython(tmp_path):
  line = 'import vit_jax; vit_jax.load("nothing.npz")'
  command = [sys.executable, '-m', 'IPython', '--no-banner', '--colors=NoColor', '-c', line]
  environment = dict(os.environ, IPYTHONDIR=str(tmp_path), PYTHONPATH=str(ROOT))
  result = subprocess.run(
    command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HUNG
  )
  assert result.stdout.startswith('There is no checkpoint nothing.npz') and result.stdout.count('\n') == 1


@pytest.fixture
def wheel(tmp_path) -> pathlib.Path:
  """The package as a wheel, built from a copy of its sources."""
  copy = tmp_path / 'sources'
  ignored = shutil.ignore_patterns('__pycache__', '.*', 'tests', 'docs', 'benchmarks', 'build')
  shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
  command = [sys.executable, '-m', 'build', '--wheel', '--outdir', str(tmp_path / 'dist'), str(copy)]
  subprocess.run(command, check=True, capture_output=True)
  (built,) = (tmp_path / 'dist').glob('*.whl')
  return built


@pytest.mark.nightly
def test_every_cell_runs_from_a_wheel_in_a_fresh_venv(values, wheel, tmp_path, monkeypatch):
  monkeypatch.delenv('PYTHONPATH', raising=False)
  python = tmp_path / 'venv/bin/python'
  subprocess.run([sys.executable, '-m', 'venv', str(tmp_path / 'venv')], check=True)
  subprocess.run([python, '-m', 'pip', 'install', '--quiet', 'ipykernel'], check=True)
  notebook = load()
  execute(notebook, tmp_path / 'fresh', str(python), **values | {'INSTALL': str(wheel)})
  assert_complete(notebook, tmp_path / 'fresh', values['CHECKPOINT'])
  command = [python, '-c', 'import vit_jax; print(vit_jax.__file__)']
  where = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
  assert where.stdout.startswith(str(tmp_path / 'venv'))
  listing = subprocess.run([tmp_path / 'venv/bin/vit_jax'], check=True, capture_output=True, text=True)
  assert 'classifies images with any checkpoint' in listing.stdout
