"""Trackers in their offline modes: they have the metrics of a run, in one run across a restart."""

import importlib.util
import json
import math
import pathlib
import types
from collections.abc import Iterator

import pytest
import tiny

from vit_jax import config as c
from vit_jax.foundation.errors import UserError
from vit_jax.training import loop, metrics, trackers

pytestmark = pytest.mark.slow

needs_mlflow = pytest.mark.skipif(
  importlib.util.find_spec('mlflow') is None, reason="needs the extra 'mlflow'"
)


def config(**options) -> c.Config:
  """A few steps on digits."""
  return c.Config(
    **{
      'total': '4 steps',
      'batch_size': 16,
      'model': tiny.options(depth=1),
      'data': c.DataConfig(source='digits', image_size=(8, 8), channels=1),
      'log_every': '2 steps',
      'tensorboard': c.TensorBoardConfig(pictures=False),
      **options,
    }
  )


def assert_has(history: dict[int, float], workdir: pathlib.Path) -> None:
  """The losses of a tracker are those of metrics.jsonl."""
  lines = metrics.read_metrics(workdir)
  assert history == {int(line['step']): line['train/loss'] for line in lines if 'train/loss' in line} != {}


@pytest.mark.nightly
@needs_mlflow
def test_mlflow_has_the_metrics_and_options_of_a_run(tmp_path, monkeypatch):
  import mlflow

  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  monkeypatch.setenv('MLFLOW_TRACKING_URI', (tmp_path / 'store').as_uri())
  loop.train(config(tracker='mlflow'), tmp_path / 'run')
  client = mlflow.MlflowClient()
  run_id = json.loads((tmp_path / 'run/tracker.json').read_text())['mlflow']
  run = client.get_run(run_id)
  assert (run.info.run_name, run.info.status) == ('run', 'FINISHED')
  assert run.data.params['batch_size'] == '16' and run.data.params['model.name'] == 'vit'
  assert_has(
    {point.step: point.value for point in client.get_metric_history(run_id, 'train/loss')}, tmp_path / 'run'
  )


@needs_mlflow
def test_mlflow_goes_on_with_a_run_that_was_stopped(tmp_path, monkeypatch):
  import mlflow

  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  monkeypatch.setenv('MLFLOW_TRACKING_URI', (tmp_path / 'store').as_uri())
  client, ids = mlflow.MlflowClient(), []
  for resume_step, step, complete in ((None, 2, False), (2, 4, True), (None, 2, True)):
    log = metrics.MetricsLog(
      tmp_path, resume_step, tracker=trackers.open_tracker(config(tracker='mlflow'), tmp_path, resume_step)
    )
    log.write(step, {'train/loss': 1 / step, 'test/nothing': math.nan})
    log.complete = complete
    log.close()
    ids.append(json.loads((tmp_path / 'tracker.json').read_text())['mlflow'])
    assert client.get_run(ids[-1]).info.status == ('FINISHED' if complete else 'KILLED')
  assert ids[0] == ids[1] != ids[2]  # what begins anew is another run
  history = client.get_metric_history(ids[0], 'train/loss')
  assert {point.step: point.value for point in history} == {2: 0.5, 4: 0.25}


@pytest.fixture
def wandb() -> Iterator[types.ModuleType]:
  """Weights & Biases, which keeps the variables that it saw first until it is torn down."""
  package = pytest.importorskip('wandb', reason="needs the extra 'wandb'")
  package.teardown()
  yield package
  package.teardown()


@pytest.mark.nightly
def test_wandb_has_the_metrics_of_a_run_offline(tmp_path, monkeypatch, wandb):
  from wandb.proto import wandb_internal_pb2

  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('WANDB_SILENT', 'true')
  ids = []
  for resume_step, steps in ((0, (2, 4)), (4, (6,))):
    log = metrics.MetricsLog(
      tmp_path, resume_step, tracker=trackers.open_tracker(config(tracker='wandb'), tmp_path, resume_step)
    )
    for step in steps:
      log.write(step, {'train/loss': 1 / step})
    log.close()
    ids.append(json.loads((tmp_path / 'tracker.json').read_text())['wandb'])
  wandb.teardown()  # as at a process's end: a file's last records may be written only now
  assert ids[0] == ids[1]
  history, options = {}, {}
  for file in (tmp_path / 'wandb').glob(f'offline-run-*/run-{ids[0]}.wandb'):
    for data in logged(file):
      record = wandb_internal_pb2.Record.FromString(data)
      options |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
      values = {
        '/'.join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
      }
      if 'train/loss' in values:
        history[values['_step']] = values['train/loss']
  assert options['batch_size'] == 16
  assert_has(history, tmp_path)


def logged(file: pathlib.Path) -> Iterator[bytes]:
  """The records of an offline run: LevelDB's log, of blocks of 32 KiB, after a header of seven bytes."""
  content, at, record = file.read_bytes(), 7, b''
  while at + 7 <= len(content):
    size, kind = int.from_bytes(content[at + 4 : at + 6], 'little'), content[at + 6]
    record += content[at + 7 : at + 7 + size]
    at += 7 + size
    if -at % 32768 < 7:
      at += -at % 32768
    if kind in (1, 4):  # whole, or the last part
      yield record
      record = b''


def test_wandb_without_a_login_is_one_sentence(tmp_path, monkeypatch, wandb):
  for name in ('WANDB_MODE', 'WANDB_API_KEY'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('NETRC', str(tmp_path / 'none'))
  monkeypatch.setenv('WANDB_BASE_URL', 'http://127.0.0.1:1')
  with pytest.raises(UserError, match=r'cannot begin a run .*WANDB_MODE=offline'):
    trackers.open_tracker(config(tracker='wandb'), tmp_path, 0)


@pytest.mark.parametrize('name', ['wandb', 'mlflow'])
def test_a_tracker_that_is_not_installed_names_the_extra(tmp_path, monkeypatch, name):
  monkeypatch.setattr(trackers.importlib.util, 'find_spec', lambda _: None)
  with pytest.raises(UserError, match=rf"pip install 'vit_jax\[{name}\]'"):
    trackers.open_tracker(config(tracker=name), tmp_path, 0)
