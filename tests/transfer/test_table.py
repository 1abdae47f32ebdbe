"""The table in its four forms."""

import csv

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.sources.vtab import TASKS
from vit_jax.experiments.report import Summary
from vit_jax.transfer import table
from vit_jax.transfer.lines import Compute, Line

COMPUTE = Compute(3, 2e18, 7200.0, 'TPU v3')
SETTINGS = {'checkpoint': 'x', 'seeds': 2}


def accuracies(*each: float) -> Summary:
  return Summary(float(np.mean(each)), float(np.std(each, ddof=1)), list(each))


@pytest.fixture
def lines() -> list[Line]:
  """VTAB, with accuracies of 0, 0.01, … in the first run and 0.1 more in the second, and CIFAR-10."""
  vtab = [
    Line(f'vtab:{name}', accuracies(0.01 * number, 0.01 * number + 0.1), rate=(0.01, None))
    for number, name in enumerate(TASKS)
  ]
  return [*vtab, Line('cifar10', accuracies(0.9, 0.92), accuracies(0.5, 0.6), rate=(0.003, 0.001))]


def rows_of(folder) -> dict[str, dict[str, str]]:
  with (folder / 'table.csv').open() as file:
    return {row['data']: row for row in csv.DictReader(file)}


def test_vtab_has_its_means_run_by_run(tmp_path, lines):
  table.write(lines, COMPUTE, SETTINGS, tmp_path)
  row = rows_of(tmp_path)['VTAB, 19 tasks']
  assert float(row['mean']) == pytest.approx(0.14)  # (0 + … + 18) / 19, and half of 0.1
  assert float(row['deviation']) == pytest.approx(0.1 / 2**0.5)
  assert row['H/14 JFT (quoted, %)'] == '77.63 ± 0.23'
  table.write(lines[1:], COMPUTE, SETTINGS, tmp_path)  # of 18 tasks it is no score
  assert 'VTAB, 19 tasks' not in (tmp_path / 'table.md').read_text()


def test_table_has_accuracies_deviations_and_compute(tmp_path, lines):
  table.write(lines, COMPUTE, SETTINGS, tmp_path)
  row = rows_of(tmp_path)['cifar10']
  assert row['runs'] == '0.9 0.92' and float(row['scratch_mean']) == 0.55
  text = (tmp_path / 'table.md').read_text()
  assert 'TPUv3-core-days of pre-training: H/14 JFT 2.5k, L/16 JFT 0.68k' in text
  assert '91.00 ± 1.41' in text and '2 exaFLOPs' in text and '2 device-hours of TPU v3' in text
  with Image.open(tmp_path / 'table.png') as picture:
    assert picture.width > 1000


def test_missing_data_is_named_with_its_command_once(tmp_path):
  lines = [
    Line('a', missing='a is not there.', prepare='tfds build a'),
    Line('b', missing='b is not there, run: tfds build b', prepare='tfds build b'),
  ]
  table.write(lines, COMPUTE, SETTINGS, tmp_path)
  text = (tmp_path / 'table.md').read_text()
  assert '- a: a is not there. Prepare it: `tfds build a`' in text
  assert text.count('tfds build b') == 1
