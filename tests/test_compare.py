"""Runs side by side, of workdirs written by hand: the command, its tables and its picture."""

import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import types

import pytest
from PIL import Image
from processes import HUNG

from vit_jax import compare
from vit_jax import config as c
from vit_jax.experiments import comparison, report
from vit_jax.foundation.errors import UserError

RUN = c.Config(batch_size=16, evaluators={'test': c.ClassificationEvaluatorConfig()})


def write(workdir: pathlib.Path, config: c.Config, accuracies: dict[int, float]) -> pathlib.Path:
  workdir.mkdir(parents=True)
  (workdir / 'config.json').write_text(json.dumps(c.as_json(config)))
  lines = [
    {'step': step, 'train/loss': 1 / step, 'test/accuracy': value, 'perf/step_ms': 900, 'learning_rate': 0.1}
    for step, value in accuracies.items()
  ]
  (workdir / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
  return workdir


@pytest.mark.slow
def test_command_writes_the_tables_as_utf_8_whatever_the_locale_and_the_curves(tmp_path):
  one = write(tmp_path / 'a/seed_0', RUN, {1000: 0.5, 2000: 0.75, 4000: 0.7})
  other = dataclasses.replace(RUN, batch_size=32, seed=1, data=c.DataConfig(source='folder:Vögel'))
  two = write(tmp_path / 'b/seed_0', other, {2000: 0.25})
  ascii_locale = {**os.environ, 'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
  script = [sys.executable, '-m', 'vit_jax.compare', str(one), str(two), f'--out={tmp_path}/out']
  done = subprocess.run(script, capture_output=True, env=ascii_locale, timeout=HUNG)
  assert done.returncode == 0, done.stderr
  text = (tmp_path / 'out' / 'compare.md').read_text(encoding='utf-8')
  rows = {line.split('|')[1].strip(): [cell.strip() for cell in line.split('|')[2:-1]] for line in
          text.splitlines() if line.startswith('|')}  # fmt: skip
  assert rows[''] == rows['option'] == ['a/seed_0', 'b/seed_0']
  assert rows['images'] == ['64,000', '64,000']
  assert rows['hours of training steps'] == ['1', '0.5']
  assert rows['test/accuracy'] == ['70.00% (75.00% at 2,000)', '25.00%']
  assert rows['batch_size'] == ['16', '32'] and rows['seed'] == ['0', '1']
  assert rows['data.source'][1] == 'folder:Vögel' and 'data.split' not in rows
  assert text.encode('ascii', 'backslashreplace') in done.stdout  # what the terminal cannot show is not lost
  with Image.open(tmp_path / 'out' / 'curves.png') as picture:
    assert picture.width >= 1000


def test_recalls_are_results_and_images_are_not_told_of_a_run_that_may_have_had_other_batches(tmp_path):
  workdir = write(tmp_path / 'one', RUN, {5: 0.5})
  recalls = {'step': 5, 'test/image_to_text_recall_at_1': 0.25, 'test/text_to_image_recall_at_10': 0.75}
  with (workdir / 'metrics.jsonl').open('a') as file:
    file.write(json.dumps(recalls) + '\n')

  def rows():
    lines = comparison.report(comparison.read_runs([workdir])).splitlines()
    return {cells[1].strip(): cells[2].strip() for line in lines if len(cells := line.split('|')) > 2}

  recall = 'test/image_to_text_recall_at_1'
  assert (rows()[recall], rows()['images'], rows()['test/accuracy']) == ('25.00%', '80', '50.00%')
  (workdir / 'takeover.json').write_text((workdir / 'config.json').read_text())
  assert rows()['images'] == ''


def test_seeds_of_a_config_have_a_mean(tmp_path):
  wide = dataclasses.replace(RUN, model=c.ViTConfig(width=1536))
  runs = [(wide, 1, 0.25), (RUN, 0, 0.5), (wide, 0, 0.75)]
  dirs = [
    write(tmp_path / str(number), dataclasses.replace(config, seed=seed), {5: 0.1, 9: value})
    for number, (config, seed, value) in enumerate(runs)
  ]
  text = comparison.report(comparison.read_runs(dirs)).split('## Means over seeds')[1]
  rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in text.splitlines() if '|' in line]
  assert rows[0] == ['model.width', 'test/accuracy']
  assert sorted(rows[2:]) == [['1536', '50.00% (75.00%, 25.00%)'], ['None', '50.00% (50.00%)']]
  assert 'Means' not in comparison.report(comparison.read_runs(dirs[:2]))


def test_means_of_runs_that_are_not_at_the_same_step_say_so(tmp_path):
  dirs = [
    write(tmp_path / str(seed), dataclasses.replace(RUN, seed=seed), values)
    for seed, values in enumerate(({9: 0.75}, {5: 0.25}))
  ]
  text = comparison.report(comparison.read_runs(dirs))
  assert '| 50.00% (75.00% at 9, 25.00% at 5)' in text.split('## Means over seeds')[1]


def test_best_accuracy_is_the_highest_and_best_loss_the_lowest(tmp_path):
  workdir = write(tmp_path / 'a', RUN, {})
  lines = [
    {'step': step, 'test/accuracy': value, 'test/loss': value}
    for step, value in ((1, 0.2), (2, 0.4), (3, 0.3))
  ]
  (workdir / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
  text = comparison.report(comparison.read_runs([workdir]))
  assert '30.00% (40.00% at 2)' in text and '0.3000 (0.2000 at 1)' in text


def test_folder_that_is_no_run_is_refused(tmp_path):
  one = write(tmp_path / 'a', RUN, {1: 0.5})
  for workdirs, said in (
    ([], 'Name the workdirs'),
    ([one, one], 'each once'),
    ([one, tmp_path], 'is not the workdir of a run'),
  ):
    with pytest.raises(UserError, match=said):
      comparison.read_runs(workdirs)


def test_what_compare_wrote_is_synced_before_it_says_so(tmp_path, monkeypatch, capsys):
  synced = set()
  monkeypatch.setattr(os, 'fsync', lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
  workdir = write(tmp_path / 'a', RUN, {1: 0.5})
  monkeypatch.setattr(compare, '_OUT', types.SimpleNamespace(value=str(tmp_path / 'out'), name='out'))
  compare.main([str(workdir)])
  assert 'Wrote' in capsys.readouterr().out
  for path in (tmp_path / 'out', tmp_path / 'out' / 'compare.md', tmp_path / 'out' / 'curves.png'):
    assert path.stat().st_ino in synced


def test_a_run_whose_number_is_none_leaves_none_to_its_group(tmp_path):
  for seed, accuracy in enumerate((0.5, float('nan'))):
    write(tmp_path / f'a/seed_{seed}', dataclasses.replace(RUN, seed=seed), {1000: accuracy})
  assert math.isnan(report.Summary.of([0.5, float('nan')]).mean)
  runs = [str(tmp_path / f'a/seed_{seed}') for seed in (0, 1)]
  script = [sys.executable, '-m', 'vit_jax.compare', *runs, f'--out={tmp_path}/out']
  done = subprocess.run(script, capture_output=True, text=True, timeout=HUNG)
  assert done.returncode == 0 and 'nan' in done.stdout, done.stderr
