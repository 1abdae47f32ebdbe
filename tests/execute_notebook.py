"""Runs a notebook of docs/ from top to bottom by a real kernel.

As a command it stores the outputs in the notebook; vit_jax is the one that is installed here, and parameters may have
other values for this run, such as folders of this machine, in the place of which the outputs have the stored values:

  python tests/execute_notebook.py colab PHOTOS=/data/imagenette CHECKPOINT=/models/dinov2
"""

import ast
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterable
from typing import Any
from unittest import mock

import nbclient
import nbformat

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / 'docs').glob('*.ipynb'))}
_COLAB_FOLDER = '/content'  # where notebooks run in Colab


def load(name: str, cells: Iterable[str] = ()) -> nbformat.NotebookNode:
  """The stored notebook without its outputs; with the code cells of these ids only, if there are any."""
  notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
  ids = set(cells) or {cell.id for cell in notebook.cells}
  notebook.cells = [cell for cell in notebook.cells if cell.cell_type == 'markdown' or cell.id in ids]
  for cell in notebook.cells:
    if cell.cell_type == 'code':
      cell.outputs, cell.execution_count = [], None
  return notebook


def parameters(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
  """The cell that is tagged 'parameters'."""
  (cell,) = (cell for cell in notebook.cells if 'parameters' in cell.metadata.get('tags', ()))
  return cell


def execute(
  notebook: nbformat.NotebookNode, folder: pathlib.Path, python: str = sys.executable, **values: Any
) -> None:
  """Fills in the notebook's outputs.

  Args:
    notebook: of `load`.
    folder: an empty folder to run in.
    python: the interpreter of the kernel.
    values: of the parameters that are to have another value than the stored one.

  Raises:
    nbclient.exceptions.CellExecutionError: a cell fails.
  """
  cell = parameters(notebook)
  lines = cell.source.splitlines()
  names = [line.partition(' = ')[0] for line in lines]
  assert values.keys() <= set(names), f'the parameters are {names}'
  changed = (f'{name} = {values[name]!r}' if name in values else line for name, line in zip(names, lines))
  cell.source = '\n'.join(changed)
  kernel = folder / 'jupyter/kernels/here'
  kernel.mkdir(parents=True)
  command = [python, '-m', 'ipykernel_launcher', '-f', '{connection_file}']
  (kernel / 'kernel.json').write_text(json.dumps({'argv': command, 'display_name': 'here'}))
  environment = dict(os.environ, IPYTHONDIR=str(folder / 'ipython'), JAX_PLATFORMS='cpu', XLA_FLAGS='')
  (folder / 'place').mkdir()
  resources = {'metadata': {'path': str(folder / 'place')}}
  client = nbclient.NotebookClient(
    notebook, timeout=900, kernel_name='here', resources=resources, coalesce_streams=True
  )
  folders = {'JUPYTER_PATH': str(folder / 'jupyter'), 'JUPYTER_RUNTIME_DIR': str(folder / 'jupyter')}
  with mock.patch.dict(os.environ, folders):
    client.execute(env=environment | folders)


def main() -> None:
  """Stores the outputs of a run in a notebook; the sources stay as they are."""
  name, *changes = sys.argv[1:]
  values = {key: value for key, _, value in (change.partition('=') for change in changes)}
  stored = nbformat.read(NOTEBOOKS[name], as_version=4)
  published = dict(line.split(' = ') for line in parameters(stored).source.splitlines())
  notebook = load(name)
  with tempfile.TemporaryDirectory() as folder:
    execute(notebook, pathlib.Path(folder), INSTALL='', **values)
    text = json.dumps([cell.get('outputs', []) for cell in notebook.cells])
    text = text.replace(f'{folder}/place', _COLAB_FOLDER)
    for key, value in values.items():
      text = text.replace(value, ast.literal_eval(published[key]))
    outputs = json.loads(text)
  for cell, run, results in zip(stored.cells, notebook.cells, outputs, strict=True):
    if cell.cell_type == 'code':
      cell.outputs = [nbformat.from_dict(result) for result in results]
      cell.execution_count = run.execution_count
  nbformat.write(stored, NOTEBOOKS[name])
  print(f'Wrote {NOTEBOOKS[name]}: {NOTEBOOKS[name].stat().st_size / 1000:.0f} kB.')


if __name__ == '__main__':
  main()
