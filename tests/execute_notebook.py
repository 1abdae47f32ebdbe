"""Runs docs/colab.ipynb from top to bottom by a real kernel.

As a command it stores the outputs in the notebook; vit_jax is the one that is installed here:

  python tests/execute_notebook.py
"""

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
NOTEBOOK = ROOT / 'docs' / 'colab.ipynb'
_COLAB_FOLDER = '/content'  # where notebooks run in Colab


def load(cells: Iterable[str] = ()) -> nbformat.NotebookNode:
  """The stored notebook without its outputs; with the code cells of these ids only, if there are any."""
  notebook = nbformat.read(NOTEBOOK, as_version=4)
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
  """Stores the outputs of a run in docs/colab.ipynb; the sources stay as they are."""
  stored = nbformat.read(NOTEBOOK, as_version=4)
  notebook = load()
  with tempfile.TemporaryDirectory() as folder:
    execute(notebook, pathlib.Path(folder), INSTALL='')
    text = json.dumps([cell.get('outputs', []) for cell in notebook.cells])
    outputs = json.loads(text.replace(f'{folder}/place', _COLAB_FOLDER))
  for cell, run, results in zip(stored.cells, notebook.cells, outputs, strict=True):
    if cell.cell_type == 'code':
      cell.outputs = [nbformat.from_dict(result) for result in results]
      cell.execution_count = run.execution_count
  nbformat.write(stored, NOTEBOOK)
  print(f'Wrote {NOTEBOOK}: {NOTEBOOK.stat().st_size / 1000:.0f} kB.')


if __name__ == '__main__':
  main()
