"""The notebooks: what is stored in them, and every cell run by a real kernel, also from a wheel in a fresh venv."""

import ast
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
from execute_notebook import NOTEBOOKS, ROOT, execute, load, parameters
from PIL import Image
from processes import HUNG
from released_files import write_random

import vit_jax
from vit_jax.config import ViTConfig

# Cells that draw, and how many pictures; those of a classifier that is never wrong draw no mistakes.
PICTURES = {
  'colab': {'attention': 2, 'embeddings': 1},
  'finetune': {'photos': 1, 'mistakes': 1, 'predict': 1},
}
BOTH = pytest.mark.parametrize('name', NOTEBOOKS)


@pytest.fixture
def values(tmp_path) -> dict[str, str | int]:
  """Parameters for a run without a network: a small checkpoint, and 15 bright and 15 dark images."""
  model = ViTConfig(variant='custom', patch=32, width=32, mlp_dim=48, depth=2, heads=4)
  checkpoint = write_random(model, tmp_path / 'model.npz', image_size=(64, 64), num_classes=10)
  rng = np.random.default_rng(1)
  for name, low in (('bright', 150), ('dark', 0)):
    (tmp_path / 'own' / name).mkdir(parents=True)
    for number in range(15):
      pixels = rng.integers(low, low + 100, (50, 70, 3), dtype=np.uint8)
      Image.fromarray(pixels).save(tmp_path / 'own' / name / f'{number:02}.jpg')
  return {'INSTALL': '', 'CHECKPOINT': str(checkpoint), 'PHOTOS': str(tmp_path / 'own')}


def cell_of(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
  (cell,) = (cell for cell in notebook.cells if cell.id == name)
  return cell


def text(notebook: nbformat.NotebookNode, name: str) -> str:
  outputs = cell_of(notebook, name).outputs
  return ''.join(output.text for output in outputs if output.output_type == 'stream')


def pictures(notebook: nbformat.NotebookNode) -> dict[str, int]:
  """How many pictures each cell shows that shows any."""
  cells = [cell for cell in notebook.cells if cell.cell_type == 'code']
  found = {cell.id: sum('image/jpeg' in output.get('data', ()) for output in cell.outputs) for cell in cells}
  return {name: count for name, count in found.items() if count}


def error(notebook: nbformat.NotebookNode, name: str) -> str:
  """What a cell that failed shows in the place of a traceback."""
  (output,) = (output for output in cell_of(notebook, name).outputs if output.output_type == 'error')
  return '\n'.join(output.traceback)


def assert_complete(name: str, notebook: nbformat.NotebookNode, folder: pathlib.Path) -> None:
  """Every cell did what it is for."""
  expected = dict(PICTURES[name])
  if name == 'colab':
    assert re.search(r'of the same folder for \d+ of 30 photos', text(notebook, 'share'))
  else:
    del expected['mistakes']
    assert re.search(r'100\.00% of 10 images', text(notebook, 'mistakes')), text(notebook, 'mistakes')
    difference = re.findall(r'Largest difference of a probability, 2 photos: (.*)', text(notebook, 'export'))
    assert float(difference[0]) < 1e-4
    assert vit_jax.load(folder / 'place/runs/mine').class_names == ('bright', 'dark')
  assert pictures(notebook) == expected


@BOTH
def test_stored_notebook_was_run_from_top_to_bottom_and_has_its_pictures(name):
  notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
  nbformat.validate(notebook)
  cells = [cell for cell in notebook.cells if cell.cell_type == 'code']
  assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
  assert not any(output.output_type == 'error' for cell in cells for output in cell.outputs)
  assert pictures(notebook) == PICTURES[name]
  content = NOTEBOOKS[name].read_text()
  assert len(content) < 400_000 and 'kipped' not in content
  assert not re.search(r'/(work|tmp|root|home)/', content)


@BOTH
def test_stored_parameters_are_published_places(name):
  values = dict(line.split(' = ') for line in parameters(load(name)).source.splitlines())
  assert values['INSTALL'].startswith("'vit_jax")
  assert values['CHECKPOINT'].startswith("'timm/")
  assert values['PHOTOS'].startswith("'https://")


@pytest.mark.nightly(but='colab')
@pytest.mark.slow
@BOTH
def test_every_cell_runs(name, values, tmp_path):
  notebook = load(name)
  sizes = {'TRAIN': 10, 'TEST': 5} if name == 'finetune' else {}
  execute(notebook, tmp_path / 'here', **values, **sizes)
  assert_complete(name, notebook, tmp_path / 'here')


@pytest.mark.nightly
@pytest.mark.slow
def test_cell_that_fails_stops_the_rest_with_one_sentence(values, tmp_path, monkeypatch):
  cells = ['parameters', 'install', 'setup', 'photos', 'train', 'predict']
  notebook = load('finetune', cells)
  with pytest.raises(nbclient.exceptions.CellExecutionError):
    execute(notebook, tmp_path / 'here', **values | {'PHOTOS': str(tmp_path / 'nowhere')})
  assert (
    error(notebook, 'photos')
    == f"PHOTOS = '{tmp_path / 'nowhere'}' is no folder; set it to one, or to an address."
  )
  assert cell_of(notebook, 'train').execution_count is None

  notebook = load('finetune', cells)
  with pytest.raises(nbclient.exceptions.CellExecutionError):
    execute(notebook, tmp_path / 'there', **values | {'CHECKPOINT': 'nothing.npz'})
  assert error(notebook, 'train').startswith('vit_jax train ended with exit code 2')
  assert 'nothing.npz' in text(notebook, 'train').splitlines()[-1]
  assert cell_of(notebook, 'predict').execution_count is None

  monkeypatch.setenv('PIP_NO_INDEX', '1')
  notebook = load('colab', cells)
  with pytest.raises(nbclient.exceptions.CellExecutionError):
    execute(notebook, tmp_path / 'elsewhere', INSTALL='no/such/vit_jax.whl')
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
@BOTH
def test_every_cell_runs_from_a_wheel_in_a_fresh_venv(name, values, wheel, tmp_path, monkeypatch):
  monkeypatch.delenv('PYTHONPATH', raising=False)
  python = tmp_path / 'venv/bin/python'
  subprocess.run([sys.executable, '-m', 'venv', str(tmp_path / 'venv')], check=True)
  subprocess.run([python, '-m', 'pip', 'install', '--quiet', 'ipykernel'], check=True)
  notebook = load(name)
  extras = ast.literal_eval(
    dict(line.split(' = ') for line in parameters(notebook).source.splitlines())['INSTALL']
  )
  sizes = {'TRAIN': 10, 'TEST': 5} if name == 'finetune' else {}
  values['INSTALL'] = extras.replace('vit_jax', str(wheel))
  execute(notebook, tmp_path / 'fresh', str(python), **values, **sizes)
  assert_complete(name, notebook, tmp_path / 'fresh')
  command = [python, '-c', 'import vit_jax; print(vit_jax.__file__)']
  where = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
  assert where.stdout.startswith(str(tmp_path / 'venv'))
  listing = subprocess.run([tmp_path / 'venv/bin/vit_jax'], check=True, capture_output=True, text=True)
  assert 'classifies images with any checkpoint' in listing.stdout
