"""The metrics of classification: each example counts once, on any number of devices and processes."""

import dataclasses
import functools
import json
import sys

import jax
import numpy as np
import pytest
from flax import nnx
from processes import finish, start
from scipy import special
from sklearn import metrics as sklearn_metrics

from vit_jax import config as c
from vit_jax.data import on_device, sources
from vit_jax.data.pipeline import EvalPipeline
from vit_jax.evaluation import base, classification, classification_metrics
from vit_jax.evaluation.classification_metrics import Examples
from vit_jax.models.base import Architecture
from vit_jax.objectives.classification import ranks
from vit_jax.parallel.mesh import batch_sharding, make_mesh, replicated
from vit_jax.training.run import Dataset, Run

CONFIG = c.Config(
  total='1 steps',
  batch_size=64,
  model=c.ViTConfig(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2),
  data=c.DataConfig(image_size=(8, 8), channels=1),
  objective=c.ClassificationObjective(label_smoothing=0.1),
)
HEAD = np.random.default_rng(0).normal(size=(16, 10)).astype(np.float32)


def evaluate(*batch_sizes: int, devices: int | None = None) -> list[dict[str, float]]:
  """The metrics of the digits' test split, of a model with random blocks and head; and how many there are."""
  evaluators = {
    f'test{size}': c.ClassificationEvaluatorConfig(source='digits', batch_size=size) for size in batch_sizes
  }
  names = tuple(map(str, range(10)))
  run = Run(dataclasses.replace(CONFIG, evaluators=evaluators), Dataset(100, names), jax.devices()[:devices])
  params = run.program.init(np.uint32(0)).params
  params['head']['kernel'] = jax.device_put(HEAD, params['head']['kernel'].sharding)
  result = []
  for evaluator in run.open_evaluators().values():
    values = evaluator.run({'': params}, {})
    metrics = {name.split('/')[1]: value for name, value in values.items()}
    result.append(metrics | {'count': evaluator.examples})
  return result


@pytest.fixture(scope='module')
def expected() -> dict[str, float]:
  """The metrics by NumPy and scikit-learn, from the logits of one batch that holds everything."""
  source = sources.open_source('digits', 'test', data=CONFIG.data)
  images = np.stack([source[i].image for i in range(len(source))])[..., None]
  labels = np.array([source[i].label for i in range(len(source))])
  model = Architecture(CONFIG.model, (8, 8), 1, 10).build(nnx.Rngs(params=jax.random.key(0)))
  model.head.kernel[...] = HEAD
  logits = np.asarray(model(on_device.prepare(images, CONFIG.data)), np.float64)
  probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  predictions, confidence = logits.argmax(-1), probabilities.max(-1)
  error = 0.0
  for low in np.arange(15) / 15:
    inside = (confidence > low) & (confidence <= low + 1 / 15)
    if inside.any():
      error += abs((predictions == labels)[inside].mean() - confidence[inside].mean()) * inside.mean()
  return {
    'accuracy': (predictions == labels).mean(),
    'loss': sklearn_metrics.log_loss(labels, probabilities),
    'count': len(labels),
    'top_5_accuracy': sklearn_metrics.top_k_accuracy_score(labels, logits, k=5),
    'mean_class_accuracy': sklearn_metrics.balanced_accuracy_score(labels, predictions),
    'calibration_error': error,
  }


@pytest.mark.slow
@pytest.mark.parametrize(('batch_size', 'devices'), [(7, 1), (64, 8)])
def test_metrics_equal_numpy_and_scikit_learn(batch_size, devices, expected):
  (scores,) = evaluate(batch_size, devices=devices)
  assert scores == pytest.approx(expected, rel=1e-5)  # the loss without label smoothing
  for name in ('accuracy', 'count', 'top_5_accuracy'):
    assert scores[name] == expected[name]  # exactly
  assert 0.01 < scores['accuracy'] < scores['top_5_accuracy'] < 0.9


SHARED = ('accuracy', 'top_5_accuracy', 'mean_class_accuracy')  # made of counts alone


def collected(*batch_sizes: int) -> list[dict[str, float]]:
  """As `evaluate`, for a "model" of whole numbers, which round the same for any shape of a batch."""
  mesh, source = make_mesh(CONFIG.mesh), sources.open_source('digits', 'test', data=CONFIG.data)

  @functools.partial(jax.jit, out_shardings=replicated(mesh))
  def step(params, batch):
    sums = batch['image'].astype(np.int32).sum((1, 2, 3))
    said = {'prediction': sums % 10, 'confidence': (sums % 97) / 128, 'rank': sums % 7, 'loss': sums / 64}
    return {'examples': said | {name: batch[name] for name in ('label', 'mask')}, 'num_classes': 10}

  result, options = [], {'crop': 'resize', 'resize': None, 'sharding': batch_sharding(mesh)}
  for size in batch_sizes:
    batches = EvalPipeline(source, CONFIG.data, batch_size=size, **options)
    examples = classification.collect(step, {'model': {}}, batches)['model']
    assert len(examples.prediction) == len(source)
    result.append(classification_metrics.summarise(examples))
  return result


@pytest.mark.nightly
def test_processes_and_batch_sizes_change_no_bit(monkeypatch):
  """One, two and four processes with four devices together, batches with and without padding.

  A model's own rounding depends on how many rows a device has, not on whose process the device is.
  """
  monkeypatch.setenv('PYTHONPATH', ':'.join(sys.path))
  script = """
    import json
    from test_classification import collected, evaluate
    from vit_jax.parallel import distributed
    distributed.initialize()
    print('result:', json.dumps([evaluate(8, 100), collected(8, 100, 360)]))
    """
  figures = [
    json.loads(output.split('result:')[1])
    for count in (1, 2, 4)
    for output in finish(start(script, count, devices=4 // count))
  ]
  assert len(figures) == 7 and all(others == figures[0] for others in figures)
  models, exact = figures[0]
  assert exact == [exact[0]] * 3 and {*exact[0], 'count'} == set(models[0])
  assert {name: models[0][name] for name in SHARED} == {name: models[1][name] for name in SHARED}
  assert models[0] == pytest.approx(models[1], rel=1e-6)


class Pixels(nnx.Module):
  """A model whose logits are the channels of an image's first pixel."""

  def __call__(self, images):
    return images[:, 0, 0]


@pytest.mark.parametrize('loss', ['softmax', 'sigmoid'])
def test_loss_of_an_evaluation_is_without_the_smoothing_of_training(loss):
  objective = c.ClassificationObjective(loss=loss, label_smoothing=0.3)
  data = c.DataConfig(mean=(0.0,), std=(0.1,))
  step = classification.make_eval_step(
    nnx.split(Pixels())[0], objective, data, make_mesh(CONFIG.mesh), num_classes=3
  )
  images = np.random.default_rng(0).integers(0, 256, (8, 1, 1, 3), np.uint8)
  labels = np.arange(8, dtype=np.int32) % 3
  found = step({}, {'image': images, 'label': labels, 'mask': np.ones(8, bool)})['examples']['loss']
  z, own = images[:, 0, 0] / 25.5, np.eye(3)[labels]
  of_classes = {'softmax': -own * special.log_softmax(z, axis=1), 'sigmoid': np.logaddexp(0, z) - own * z}[
    loss
  ]
  np.testing.assert_allclose(found, of_classes.sum(1), rtol=1e-5)


def examples(logits: np.ndarray, labels: np.ndarray, loss: str = 'softmax', **options) -> Examples:
  """What the evaluation step says of logits."""
  return Examples(
    num_classes=logits.shape[1],
    label=labels.astype(np.int32),
    prediction=logits.argmax(-1).astype(np.int32),
    confidence=np.asarray(c.ClassificationObjective(loss=loss).confidence(logits)),
    rank=np.asarray(ranks(logits, labels)) if labels.ndim == 1 else np.full(len(logits), -1),
    loss=np.zeros(len(logits), np.float32),
    **options,
  )


def test_an_evaluator_of_images_that_are_trained_on_is_named(caplog):
  splits = {'test': 'test', 'val': 'train[90%:]', 'own': 'test'}
  evaluators = {name: c.ClassificationEvaluatorConfig(split=split) for name, split in splits.items()}
  evaluators['own'] = c.ClassificationEvaluatorConfig(source='digits:train')
  for split, names in (('train', ['own', 'val']), ('train[:90%]', ['own'])):
    caplog.clear()
    data = dataclasses.replace(CONFIG.data, source='digits', split=split)
    config = dataclasses.replace(CONFIG, data=data, evaluators=evaluators)
    Run(config, Dataset(100, tuple(map(str, range(10)))), jax.devices()[:1]).open_evaluators()
    said = [record.getMessage() for record in caplog.records]
    assert sorted(text.split()[0].split('.')[-1] for text in said if 'trained' in text) == names


def test_ranks_are_those_of_top_k_and_a_logit_that_is_nan_is_no_hit():
  rng = np.random.default_rng(2)
  logits, labels = rng.integers(-2, 3, (300, 9)).astype(np.float32), rng.integers(0, 9, 300)
  order = np.asarray(jax.lax.top_k(logits, 9)[1])
  np.testing.assert_array_equal(ranks(logits, labels), (order == labels[:, None]).argmax(1))
  logits = np.float32([[1, np.nan, 3, 0, 0, 0], [np.nan] * 6])
  assert (np.asarray(ranks(logits, np.array([2, 0]))) == [1, 6]).all()
  values = classification_metrics.summarise(examples(logits, np.array([2, 0])))
  assert np.isnan(values['calibration_error'])


@pytest.mark.slow
def test_confusion_matrix_equals_scikit_learns():
  """500 examples of 12 classes of which one has none; many logits are equal."""
  rng = np.random.default_rng(1)
  labels = rng.integers(0, 11, 500)
  ties = examples(rng.integers(-2, 3, (500, 12)).astype(np.float32), labels)
  matrix = classification_metrics.confusion(ties)
  expected = sklearn_metrics.confusion_matrix(ties.label, ties.prediction, labels=range(12))
  np.testing.assert_array_equal(matrix, expected)
  right, total = classification_metrics.per_class(ties)
  np.testing.assert_array_equal(right, matrix.diagonal())
  np.testing.assert_array_equal(total, matrix.sum(1))
  # The class without examples is left out of the mean.
  mean = classification_metrics.summarise(ties)['mean_class_accuracy']
  assert mean == pytest.approx((right[:11] / total[:11]).mean(), rel=1e-12)


def test_calibration_equals_the_sum_by_hand():
  """Confidences 0.5, 0.6 and 0.6, of which one is right: bins (7/15, 8/15] and (8/15, 9/15]."""
  three = examples(np.eye(3, dtype=np.float32)[[0, 1, 0]], np.array([0, 1, 2]))
  found = classification_metrics.calibration(three._replace(confidence=np.array([0.5, 0.59375, 0.59375])))
  assert found.count.tolist() == [0] * 7 + [1, 2] + [0] * 6
  assert found.confidence[7:9].tolist() == [0.5, 0.59375] and found.accuracy[7:9].tolist() == [1, 0.5]
  assert found.error == pytest.approx(0.5 / 3 + 2 / 3 * 0.09375)
  # One on the edge of a bin is in the lower one.
  found = classification_metrics.calibration(three._replace(confidence=np.float64([0, 1 / 15, 1])))
  assert found.count[0] == 2 and found.count[-1] == 1


@pytest.mark.slow
def test_confidence_is_a_softmax_or_sigmoid_as_the_loss():
  logits = np.float32([[1, 2, 0.5]])
  softmax, sigmoid = (
    examples(logits, np.array([1]), loss=loss).confidence for loss in ('softmax', 'sigmoid')
  )
  assert softmax == pytest.approx(np.exp(2) / np.exp(logits).sum(), rel=1e-6)
  assert sigmoid == pytest.approx(1 / (1 + np.exp(-2)), rel=1e-6)


@pytest.mark.slow
def test_metrics_that_mean_nothing_are_left_out_and_all_others_say_how_they_are_read():
  few = classification_metrics.summarise(examples(np.float32([[1, 0]]), np.array([0])))
  assert set(few) == {'accuracy', 'loss', 'mean_class_accuracy', 'calibration_error'}
  lists = examples(np.eye(6, dtype=np.float32), np.array([[0, 1], [-1, -1]] * 3))
  values = classification_metrics.summarise(lists._replace(mean_average_precision=0.5))
  assert set(values) == {'accuracy', 'loss', 'mean_average_precision'}
  assert values['accuracy'] == 1 / 6  # of the lists of examples 0, 2 and 4, an empty one is a miss
  softmax = examples(np.eye(6, dtype=np.float32), np.arange(6), real=np.zeros((6, 1), int))
  given = {*classification_metrics.summarise(softmax), *values}
  assert given == set(c.ClassificationEvaluatorConfig.metrics)


@pytest.mark.parametrize(
  ('name', 'value', 'text'),
  [
    ('test/accuracy', 0.98611, '98.61%'),
    ('web_5shot/deviation', 0.0125, '0.0125'),
    ('test/loss', 0.14624, '0.1462'),
    ('data/bad_images', 3.0, '3'),
  ],
)
def test_metrics_are_printed_as_their_kind_says(name, value, text):
  assert base.format_metric(name, value) == text


def test_the_best_loss_is_the_lowest_and_the_best_accuracy_the_highest():
  assert base.metric_kind('val_ema/accuracy').higher_is_better
  assert not base.metric_kind('val/loss').higher_is_better
