"""Whole runs of the real command: resume, stop, damage, evaluation, several processes."""

import json
import os
import pathlib
import re
import signal

import batch_norm_model
import kill_and_resume
import pytest
from commands import assert_done, assert_said, run
from processes import HUNG, wait_until

from vit_jax.foundation.errors import EXIT_RESTART

# Fewer kills and steps than `python tests/kill_and_resume.py --kills=20 --rounds=50`, which is run by hand.
STEPS = 60
CONFIG = kill_and_resume.CONFIG.replace("'240 steps'", f"'{STEPS} steps'")


@pytest.mark.nightly(but='3-1-1')
@pytest.mark.slow
@pytest.mark.parametrize(('kills', 'processes', 'finish_as'), [(3, 1, 1), (1, 2, 2), (1, 2, 1)])
def test_a_killed_run_ends_in_the_same_bits(tmp_path, kills, processes, finish_as):
  print(kill_and_resume.check(kills, processes, finish_as, tmp_path, config_text=CONFIG))


SMALL_EFFICIENTNET = re.sub(
  r'ViTConfig\(.*?\n    \)',
  "EfficientNetConfig(variant='custom', width_multiplier=0.25, depth_multiplier=0.1, stochastic_depth=0.2)",
  CONFIG.replace('image_size=(8, 8)', 'image_size=(32, 32)').replace(f"'{STEPS} steps'", "'20 steps'"),
  flags=re.DOTALL,
)
TWO_TOWERS = (
  CONFIG.replace('ViTConfig(', 'TwoTowersConfig(text_length=12, text_depth=1, ')
  .replace('ClassificationEvaluatorConfig(', 'ZeroShotEvaluatorConfig(')
  .replace('    ema=0.99,', "    objective=ContrastiveObjective(prompts=('a {}', 'the {}')),\n    ema=0.99,")
  .replace(f"'{STEPS} steps'", "'20 steps'")
)

SELF_DISTILLATION = (
  re.sub(
    r'ViTConfig\(.*?\n    \)',
    "DinoConfig(variant='custom', patch=2, width=32, mlp_dim=64, depth=1, heads=4, stochastic_depth=0.2, "
    'prototypes=64, projection_hidden=32, projection_width=16)',
    CONFIG.replace(f"'{STEPS} steps'", "'20 steps'"),
    flags=re.DOTALL,
  )
  .replace('ClassificationEvaluatorConfig(', 'FewShotEvaluatorConfig(seeds=1, ')
  .replace(
    '    ema=0.99,',
    '    objective=SelfDistillationObjective(local_crops=2, local_size=(4, 4)),\n'
    "    ema=0.9,\n    ema_schedule='cosine',",
  )
)
CONTRASTIVE_VIEWS = (
  SELF_DISTILLATION.replace('DinoConfig(', 'MocoConfig(')
  .replace('prototypes=64, ', '')
  .replace('SelfDistillationObjective(local_crops=2, local_size=(4, 4))', 'ContrastiveViewsObjective()')
)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
  ('config', 'state', 'processes'),
  [
    (pathlib.Path(batch_norm_model.__file__).read_text(), "model_state['block0']['norm']['mean']", 1),
    (SELF_DISTILLATION, "ema['projection']['prototypes']['kernel']", 1),
    (CONTRASTIVE_VIEWS, "ema['projection']['norm_2']['var']", 1),
    (TWO_TOWERS, "params['text_tower']['embedding']", 1),
    (SMALL_EFFICIENTNET, "model_state['top_norm']['mean']", 2),
  ],
  ids=['batch_norm', 'self_distillation', 'contrastive_views', 'two_towers', 'efficientnet'],
)
def test_a_killed_run_of_another_kind_of_model_ends_in_the_same_bits(tmp_path, config, state, processes):
  """Also where a single process goes on with the run of two."""
  print(kill_and_resume.check(1, processes, 1, tmp_path, config_text=config))
  assert state in kill_and_resume.final_arrays(tmp_path / 'killed')


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize('processes', [1, 2])
def test_a_stop_saves_and_asks_to_be_started_again(tmp_path, processes, number):
  """The signal goes to one process; all save the same step and exit with 75; the run then ends."""
  config, workdir = tmp_path / 'config.py', tmp_path / 'run'
  config.write_text(CONFIG.replace("every='5 steps'", f"every='{STEPS} steps'"))
  started = kill_and_resume.start(config, workdir, processes)
  wait_until(
    lambda: kill_and_resume.lines(workdir), lambda: all(process.poll() is None for process in started)
  )
  started[-1].send_signal(number)
  assert [process.wait(timeout=HUNG) for process in started] == [EXIT_RESTART] * processes
  (step,) = (int(path.name) for path in (workdir / 'checkpoints').iterdir())
  assert step < STEPS  # saved because it was asked to stop
  log = (tmp_path / 'run.0.log').read_text()
  assert f'Stopped at step {step} of {STEPS}' in log and 'Start the same command again' in log
  kill_and_resume.finish(kill_and_resume.start(config, workdir, processes), workdir)
  assert f'Resuming from step {step}' in (tmp_path / 'run.0.log').read_text()
  steps = [json.loads(line)['step'] for line in kill_and_resume.lines(workdir)]
  assert steps == list(range(3, STEPS + 1, 3))


@pytest.mark.nightly
@pytest.mark.slow
def test_evaluating_a_workdir_adds_a_report_and_changes_nothing_there(tmp_path):
  assert_done(run(tmp_path, '--config.ema=0.5'))
  final = json.loads(kill_and_resume.lines(tmp_path / 'run')[-1])
  before = {path: path.stat().st_mtime_ns for path in (tmp_path / 'run').rglob('*') if path.is_file()}
  result = run(tmp_path, '--mode=eval', '--config.ema=0.5', '--config.evaluators.test.batch_size=50')
  assert result.returncode == 0, result.stderr
  assert f'test/accuracy {final["test/accuracy"]:.2%}' in result.stdout
  assert f'test_ema/accuracy {final["test_ema/accuracy"]:.2%}' in result.stdout
  after = {path: path.stat().st_mtime_ns for path in (tmp_path / 'run').rglob('*') if path.is_file()}
  assert before.items() <= after.items()
  added = {str(path.relative_to(tmp_path / 'run')) for path in after.keys() - before.keys()}
  assert added == {
    f'evaluations/step_4/{name}{what}'
    for name in ('test', 'test_ema')
    for what in ('.json', '_confusion.png', '_classes.png')
  }


@pytest.mark.slow
def test_a_run_leaves_its_files_and_falls_back_from_a_damaged_checkpoint(tmp_path):
  result = run(tmp_path)
  assert_done(result)
  for text in ('Devices: 8 × cpu', 'Vision Transformer, 1 blocks', '1,437 images, 10 classes', '360 images'):
    assert text in result.stdout
  assert 'patch_embedding/kernel' in (tmp_path / 'run' / 'report' / 'parameters.txt').read_text()
  last = json.loads(kill_and_resume.lines(tmp_path / 'run')[-1])
  assert last['step'] == 4
  assert {'train/loss', 'train/accuracy', 'learning_rate', 'test/accuracy', 'test/loss'} <= last.keys()
  assert {'perf/images_per_second', 'perf/step_ms', 'perf/data_wait', 'perf/eta_s'} <= last.keys()
  for name in ('config.json', 'report/first_batch.png', 'report/curves.png', 'checkpoints/4'):
    assert (tmp_path / 'run' / name).exists()
  assert result.stdout.strip().splitlines()[-1].startswith('Done after 4 steps: test/accuracy ')
  newest = tmp_path / 'run' / 'checkpoints' / '4'
  for path in newest.rglob('*'):
    if path.is_file() and path.parent.name == 'd':
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  result = run(tmp_path)
  assert_done(result)
  assert 'is damaged' in result.stderr and 'Resuming from step 2' in result.stdout
  assert (tmp_path / 'run' / 'damaged' / '4-0').is_dir()
  for step in (2, 4):
    for path in (tmp_path / 'run' / 'checkpoints' / str(step)).rglob('*'):
      if path.is_file():
        path.write_bytes(b'')
  assert_said(run(tmp_path), 'None of the 2 checkpoints', 'is sound')
  assert sorted(os.listdir(tmp_path / 'run' / 'checkpoints')) == ['2', '4']  # nothing is thrown away
