"""The notebook, run from top to bottom by a real kernel, on a small checkpoint and a folder of images."""

import json
import os
import pathlib
import sys

import nbclient
import nbformat
import numpy as np
import pytest
from PIL import Image
from released_files import write_random

import vit_jax
from vit_jax.config import ViTConfig

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOK = ROOT / 'docs' / 'colab.ipynb'
NAMES = [f'thing number {number}' for number in range(10)]


@pytest.fixture
def checkpoint(tmp_path) -> pathlib.Path:
  """A released file of two blocks and 32 px, with random parameters."""
  model = ViTConfig(variant='custom', patch=32, width=32, mlp_dim=48, depth=2, heads=4)
  return write_random(model, tmp_path / 'model.npz', image_size=(64, 64), num_classes=len(NAMES))


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
  """Two classes of 30 images, of which one is bright and one is dark."""
  rng = np.random.default_rng(1)
  for name, low in (('bright', 150), ('dark', 0)):
    (tmp_path / 'photos' / name).mkdir(parents=True)
    for number in range(30):
      pixels = rng.integers(low, low + 100, (50, 70, 3), dtype=np.uint8)
      Image.fromarray(pixels).save(tmp_path / 'photos' / name / f'{number:02}.jpg')
  return tmp_path / 'photos'


def tagged(notebook: nbformat.NotebookNode, tag: str) -> nbformat.NotebookNode:
  (cell,) = (cell for cell in notebook.cells if tag in cell.metadata.get('tags', ()))
  return cell


def outputs(notebook: nbformat.NotebookNode, name: str) -> list[nbformat.NotebookNode]:
  (cell,) = (cell for cell in notebook.cells if cell.id == name)
  return cell.outputs


def text(notebook: nbformat.NotebookNode, name: str) -> str:
  return ''.join(output.text for output in outputs(notebook, name) if output.output_type == 'stream')


def pictures(notebook: nbformat.NotebookNode, name: str) -> int:
  return sum('image/png' in output.get('data', ()) for output in outputs(notebook, name))


def test_what_is_stored():
  """A valid notebook without outputs; its checkpoint is a published one."""
  notebook = nbformat.read(NOTEBOOK, as_version=4)
  nbformat.validate(notebook)
  for cell in notebook.cells:
    if cell.cell_type == 'code':
      assert not cell.outputs and cell.execution_count is None
  assert "'imagenet21k+imagenet2012/ViT-B_16'" in tagged(notebook, 'parameters').source
  assert "pip install --quiet --editable '.[cuda]'" in tagged(notebook, 'install').source


@pytest.mark.slow
def test_every_cell_runs(checkpoint, folder, tmp_path, monkeypatch):
  (tmp_path / 'names.txt').write_text('\n'.join(NAMES))
  (tmp_path / 'configs').symlink_to(ROOT / 'configs')
  notebook = nbformat.read(NOTEBOOK, as_version=4)
  notebook.cells.remove(tagged(notebook, 'install'))
  values = {'CHECKPOINT': str(checkpoint), 'FOLDER': str(folder), 'STEPS': 20}
  values['CLASS_NAMES'] = (tmp_path / 'names.txt').as_uri()
  parameters = tagged(notebook, 'parameters')
  given = {line.split(' = ')[0] for line in parameters.source.splitlines()}
  assert given == values.keys()
  parameters.source = '\n'.join(f'{name} = {value!r}' for name, value in values.items())

  monkeypatch.setenv('JUPYTER_RUNTIME_DIR', str(tmp_path / 'jupyter'))
  environment = {
    **os.environ,
    'IPYTHONDIR': str(tmp_path / 'ipython'),
    'JAX_PLATFORMS': 'cpu',
    'PATH': os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ['PATH']]),
    'PYTHONPATH': str(ROOT),
    'XLA_FLAGS': '',
  }
  client = nbclient.NotebookClient(
    notebook, timeout=300, kernel_name='python3', resources={'metadata': {'path': str(tmp_path)}}
  )
  client.execute(env=environment)
  nbformat.write(notebook, tmp_path / 'executed.ipynb')

  model = vit_jax.load(checkpoint)
  logits = model(model.preprocess([Image.open(folder / 'bright' / '00.jpg')]))
  lines = text(notebook, 'predict').splitlines()
  assert len(lines) == 5 and lines[0].endswith(NAMES[int(np.argmax(logits))])
  assert 'reinitialised: head/bias (2,)' in text(notebook, 'train')
  assert 'Done after 20 steps' in text(notebook, 'train')
  metrics = [json.loads(line) for line in (tmp_path / 'runs/mine/metrics.jsonl').read_text().splitlines()]
  assert metrics[-1]['step'] == 20 and metrics[-1]['test/accuracy'] == 1
  assert vit_jax.load(tmp_path / 'runs/mine').class_names == ('bright', 'dark')
  assert pictures(notebook, 'curves') == 2
  assert pictures(notebook, 'results') == 1
  assert pictures(notebook, 'attention') == 2
  assert pictures(notebook, 'layers') == 4
