"""What a person does wrong, against the real command: one sentence, exit code 2, nothing lost."""

import pytest
from commands import assert_done, assert_said, run


@pytest.mark.nightly
@pytest.mark.slow
def test_without_a_workdir_the_run_lives_in_a_folder_named_after_its_config(tmp_path):
  result = run(tmp_path, workdir=None)
  assert_done(result)
  assert 'Workdir: runs/config' in result.stderr
  assert (tmp_path / 'runs' / 'config' / 'checkpoints' / '4').is_dir()


@pytest.mark.parametrize(
  ('flags', 'texts'),
  [
    (['--config.model.widht=3'], ['no option config.model.widht; did you mean config.model.width?']),
    (['--config.batch_size=many'], ['config.batch_size', 'many']),
    (['--config.batch_size=12'], ['batch', '12', 'config.mesh']),
    (['--config.data.image_size=(10,8)'], ['config.data.image_size', '4 pixels', '8, 8']),
    (['--config.model.variant=B/17'], ['B/17', 'B/16']),
    (['--config.mesh.data=3'], ['config.mesh', '8 here']),
    (['--config.data.source=tfds:cifer10'], ['cifer10']),
    (['--config.data.source=mnist'], ['mnist', "'digits'", 'tfds:NAME']),
    (['--config.data.split=trian'], ['trian', 'train']),
    (['--config.data.num_classes=3'], ['config.data.num_classes', '10 classes']),
    (['--config.optimizer.freeze=("^stem",)'], ['config.optimizer.freeze', '^stem', 'blocks']),
    (['--config.schedule.warmup=9 steps'], ['warmup', '4 steps']),
    (['--mode=eval'], ['no checkpoint', 'run']),
  ],
  ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_wrong_options(tmp_path, flags, texts):
  assert_said(run(tmp_path, *flags), *texts)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
  result = run(tmp_path, '--config.schedule.learning_rate=1e38', '--config.optimizer.name=sgd')
  assert_said(result, 'not finite', 'nonfinite_step_', 'config.nonfinite=skip')
  (report,) = (tmp_path / 'run' / 'report').glob('nonfinite_step_*.json')
  assert '"records": [' in report.read_text()


@pytest.mark.slow
def test_a_run_most_of_whose_steps_are_skipped_stops(tmp_path):
  flags = ['--config.schedule.learning_rate=1e30', '--config.nonfinite=skip', '--config.total=200 steps']
  result = run(tmp_path, *flags, '--config.checkpoint.every=100 steps')
  assert_said(
    result, r'of the last 20 steps, which were skipped', 'lower the learning rate (', 'no checkpoint yet'
  )


@pytest.mark.nightly
@pytest.mark.slow
def test_another_config_on_the_same_workdir(tmp_path):
  assert_done(run(tmp_path))
  before = sorted(tmp_path.rglob('run/**/*'))
  said = run(tmp_path, '--config.model.depth=2', '--config.seed=1')
  assert_said(said, 'model.depth (1 there, 2 here)', 'seed (0 there, 1 here)', 'another --workdir')
  assert sorted(tmp_path.rglob('run/**/*')) == before
  # What does not change the result may differ; and a run that is complete says so again.
  assert_done(run(tmp_path, '--config.log_every=1 steps', '--config.mesh.fsdp=2'))
