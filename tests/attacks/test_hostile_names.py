"""Names that are formulas, markup or no UTF-8, in every picture and table: nothing ends the run, nothing is markup."""

import io
import json
import os
import pathlib
import sys

import fork_server
import numpy as np
import pytest
import tiny
from flax import nnx
from PIL import Image

from vit_jax import cli
from vit_jax import config as c
from vit_jax.data.preprocess import Preprocess
from vit_jax.evaluation import report
from vit_jax.evaluation.classification_metrics import Examples
from vit_jax.experiments import comparison
from vit_jax.experiments.report import Summary
from vit_jax.loaded_model import LoadedModel
from vit_jax.training import figures
from vit_jax.transfer import figure
from vit_jax.transfer.lines import Line
from vit_jax.visualize import gallery

# matplotlib cannot draw any of these as a formula.
NAMES = ('$10_$20', '\\frac', r'$\frac$', '$$', '_^{', '<script>alert(1)</script>', '%s {0}', 'a\nb', '')


def test_first_batch_and_curves_draw_any_name(tmp_path):
  images, labels = np.zeros((len(NAMES), 8, 8, 3), np.float32), np.arange(len(NAMES))
  figures.save_first_batch(tmp_path / 'report/first_batch.png', images, labels, NAMES, c.DataConfig())
  lines = [{'step': step, **{f'{name}/loss': 1.0 for name in NAMES}} for step in (1, 2)]
  (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
  figures.save_curves(tmp_path)
  assert {path.name for path in (tmp_path / 'report').iterdir()} == {'first_batch.png', 'curves.png'}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize('classes', [len(NAMES), 40])  # the axes name the classes, or bars do
def test_report_of_an_evaluation_draws_any_name(tmp_path, classes):
  names = (NAMES * 5)[:classes]
  label = np.arange(classes)
  examples = Examples(
    num_classes=classes,
    label=label,
    prediction=np.roll(label, 1),
    confidence=np.full(classes, 0.5, np.float32),
    rank=np.zeros(classes, np.int32),
    loss=np.ones(classes, np.float32),
  )
  report.save(tmp_path, '$a_$', examples, names)
  assert len(list(tmp_path.glob('*.png'))) == 2
  found = json.loads((tmp_path / '$a_$.json').read_text())['classes']
  assert [entry['name'] for entry in found] == list(names)


def test_comparison_draws_runs_and_metrics_of_any_name(tmp_path):
  folders = [os.path.join(os.fsencode(tmp_path), name) for name in (b'$10_$20', b'\xff\\frac')]
  for folder in folders:
    os.mkdir(folder)
    with open(os.path.join(folder, b'config.json'), 'w') as file:
      json.dump(c.as_json(c.Config()), file)
    with open(os.path.join(folder, b'metrics.jsonl'), 'w') as file:
      file.write(json.dumps({'step': 1, '$x_$/loss': 1.0, 'learning_rate': 0.1}) + '\n')
  runs = comparison.read_runs([pathlib.Path(os.fsdecode(folder)) for folder in folders])
  assert [run.name for run in runs] == ['$10_$20', '\\xff\\frac']
  assert comparison.report(runs).encode()
  comparison.draw(runs, tmp_path / 'curves.png')


def test_table_of_transfer_draws_any_name(tmp_path):
  accuracies = Summary(0.5, 0.1, None)
  lines = [Line(name, accuracies, None, (), (), '', '', ()) for name in NAMES]
  figure.draw(lines, ['$x_$', 'ours'], [[name, '50'] for name in NAMES], list(NAMES), tmp_path / 'table.png')
  assert Image.open(tmp_path / 'table.png').width > 100


@pytest.mark.nightly
@pytest.mark.slow
def test_page_of_pictures_shows_any_name_as_text(tmp_path):
  graphdef, params = tiny.build(tiny.options(), image_size=(12, 8), channels=3, num_classes=len(NAMES))
  preprocess = Preprocess.from_range((12, 8), -1, 1)
  model = LoadedModel(nnx.merge(graphdef, params), preprocess, NAMES)
  path = pathlib.Path(os.fsdecode(b'$x_$<b>\xff.png'))
  gallery.make(
    model, [path], [path], lambda _: np.zeros((9, 9, 3), np.uint8), gallery.Output(tmp_path), title=NAMES[0]
  )
  text = (tmp_path / 'index.html').read_text(encoding='utf-8')
  assert '<script' not in text and '<b>' not in text and r'&lt;b&gt;\udcff.png' in text


def test_output_is_of_names_of_any_bytes(monkeypatch):
  """As of `predict`, whose table has the names of the files."""
  written = io.BytesIO()
  monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(written, 'utf-8', errors='strict'))
  monkeypatch.setattr(sys, 'argv', ['command'])
  monkeypatch.setattr(sys, 'exit', lambda code: None)
  assert cli._exit_code(lambda: print(os.fsdecode(b'caf\xe9')), ['command'], False) == 0
  assert written.getvalue() == b'caf\\udce9\n'


@pytest.mark.nightly
@pytest.mark.slow
def test_workdir_that_checkpoints_cannot_be_written_to_is_refused_before_training(tmp_path):
  workdir = os.fsdecode(b'caf\xe9')
  result = fork_server.run('vit_jax.main', '--config=quickstart', f'--workdir={workdir}', cwd=tmp_path)
  assert result.returncode == 2 and 'bytes that are not UTF-8' in result.stderr, result.stderr
  assert not list(tmp_path.iterdir())
