"""metrics.jsonl across restarts, the speedometer's arithmetic, and the figures of a run."""

import json
import time
import types

import numpy as np
import optax
import processes
import pytest
import tensorboard_events
from PIL import Image

from vit_jax import config as c
from vit_jax.training import figures, metrics
from vit_jax.training.run import Dataset, Run


def speedometer(monkeypatch, device_kind='TPU v3', **options) -> metrics.Speedometer:
  """Of a run on all eight devices, which are said to be of a kind."""
  model = c.ViTConfig(variant='custom', patch=4, width=8, mlp_dim=8, depth=1, heads=2)
  config = c.Config(**{'total': '100 steps', 'batch_size': 32, 'model': model, 'data': DATA, **options})
  run = Run(config, Dataset(320, num_classes=10))
  device = types.SimpleNamespace(device_kind=device_kind)
  monkeypatch.setattr(metrics.jax, 'devices', lambda: [device])
  # A TFLOP a step of 8 × 8 pixels, a quarter of it of 4 × 4.
  monkeypatch.setattr(run, 'step_flops', lambda size: 1e12 * (size[0] / 8) ** 2)
  return metrics.Speedometer(run)


DATA = c.DataConfig(image_size=(8, 8))


@pytest.fixture
def now(monkeypatch):
  """The clock, as a list of its one value, which a test sets."""
  clock = [100.0]
  monkeypatch.setattr(time, 'perf_counter', lambda: clock[0])
  return clock


def test_a_resumed_log_drops_what_is_computed_again(tmp_path):
  log = metrics.MetricsLog(tmp_path, 0)
  for step in (1, 2, 3):
    log.write(step, {'train/loss': 1 / step})
  log.close()
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 4, "train/lo')  # a kill in the middle of a line
  assert [line['step'] for line in metrics.read_metrics(tmp_path)] == [1, 2, 3]
  log = metrics.MetricsLog(tmp_path, 2)
  log.write(3, {'train/loss': 0.25})
  log.close()
  found = metrics.read_metrics(tmp_path)
  now = time.time()
  assert all(now - 600 < line.pop('perf/time') <= now for line in found)
  assert found == [
    {'step': 1, 'train/loss': 1.0},
    {'step': 2, 'train/loss': 0.5},
    {'step': 3, 'train/loss': 0.25},
  ]
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert len(lines) == 3 and all(json.loads(line) for line in lines)


def test_tensorboard_has_the_same_numbers(tmp_path):
  log = metrics.MetricsLog(tmp_path, 0)
  log.write(7, {'train/loss': 0.5, 'val/accuracy': 0.75})
  log.close()
  found = {value.tag: (step, value.simple_value) for step, value in tensorboard_events.read(tmp_path)}
  assert found == {'train/loss': (7, 0.5), 'val/accuracy': (7, 0.75)}


def test_speed_is_of_training_alone(monkeypatch, now):
  speed = speedometer(monkeypatch)
  speed.restart()
  for _ in range(10):
    now[0] += 0.5
    speed.waited(0.05)
    speed.stepped()
  values = speed.read(50)
  assert values['perf/images_per_second'] == pytest.approx(64)
  assert values['perf/step_ms'] == pytest.approx(500)
  assert values['perf/data_wait'] == pytest.approx(0.1)
  assert values['perf/eta_s'] == pytest.approx(25)
  assert values['perf/mfu'] == pytest.approx(2e12 / (8 * 61.5e12))
  now[0] += 1000  # an evaluation
  speed.restart()
  now[0] += 0.5
  speed.stepped()
  assert speed.read(51)['perf/images_per_second'] == pytest.approx(64)


def test_time_left_with_progressive_resizing_is_that_of_the_flops_to_come(monkeypatch, now):
  """40 steps of a quarter of a TFLOP, then 60 of one."""
  data = c.DataConfig(image_size=(8, 8), progressive_resizing=(('40 steps', 4),))
  speed = speedometer(monkeypatch, data=data)
  for seconds, steps, step, eta in ((1, 10, 10, 270), (4, 20, 60, 160)):
    speed.restart()
    for _ in range(steps):
      now[0] += seconds
      speed.stepped()
    values = speed.read(step)
    assert values['perf/eta_s'] == pytest.approx(eta)
    assert values['perf/mfu'] == pytest.approx(0.25 / (8 * 61.5))


def test_time_left_is_smoothed_over_the_intervals(monkeypatch, now):
  """An interval that takes twice the time moves the estimate by 0.3 of the difference."""
  speed = speedometer(monkeypatch)
  speed.restart()
  assert speed.seconds_left(0) is None
  for seconds, step, left in ((1, 1, 99), (2, 2, 1.3 * 98)):
    speed.restart()
    now[0] += seconds
    speed.stepped()
    assert speed.read(step)['perf/eta_s'] == pytest.approx(left)
    assert speed.seconds_left(step) == pytest.approx(left)


def test_mfu_is_not_guessed_where_the_peak_is_unknown(monkeypatch):
  speed = speedometer(monkeypatch, device_kind='cpu')
  speed.stepped()
  assert 'perf/mfu' not in speed.read(1)


@pytest.mark.parametrize('channels', [1, 3])
def test_first_batch_shows_the_images(tmp_path, channels):
  # A white and a black image: what is drawn has both, inside frames of the same size.
  images = np.stack([np.full((8, 12, channels), value, np.float32) for value in (1.0, -1.0)])
  path = tmp_path / 'report' / 'first_batch.png'
  figures.save_first_batch(
    path, images, np.array([0, 1]), ('white', 'black'), c.DataConfig(channels=channels)
  )
  pixels = np.asarray(Image.open(path).convert('RGB')).astype(int)
  black = (pixels.sum(-1) < 10).mean()
  assert 0.05 < black < 0.2  # an eighth of the width, most of the height


def test_curves_are_drawn_from_the_log(tmp_path):
  log = metrics.MetricsLog(tmp_path, 0)
  for step in range(1, 50):
    scores = {'test/accuracy': 0.5, 'test/loss': 1.0} if step % 10 == 0 else {}
    log.write(step, {'train/loss': 2.0, 'train/accuracy': 0.1, 'learning_rate': 1e-3} | scores)
  log.close()
  (tmp_path / 'report').mkdir()
  figures.save_curves(tmp_path)
  width, height = Image.open(tmp_path / 'report' / 'curves.png').size
  assert (width, height) == (1300, 400)


def test_a_smoothed_curve_is_the_bias_corrected_moving_average_of_optax():
  values = np.random.default_rng(0).normal(size=200).astype(np.float32)
  average = optax.ema(1 - 20 / 200, debias=True)
  state = average.init(values[0])
  for value, smoothed in zip(values, figures.smoothed(values), strict=True):
    expected, state = average.update(value, state)
    np.testing.assert_allclose(smoothed, expected, atol=1e-5)


@pytest.mark.slow
def test_a_run_writes_to_tensorboard_without_importing_pytorch_or_clients_of_buckets(tmp_path):
  code = """
    import pathlib, sys
    from vit_jax.training.metrics import MetricsLog

    log = MetricsLog(pathlib.Path(sys.argv[1]), 0)
    log.write(1, {'train/loss': 0.5})
    log.close()
    assert 'tensorboardX' in sys.modules and not {'torch', 'boto3', 'google.cloud.storage'} & sys.modules.keys()
    import boto3, google.cloud.storage
  """
  processes.run(code, arguments=(tmp_path,))
  assert list(tmp_path.glob('events.*'))
