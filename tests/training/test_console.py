"""What a run says of itself on the screen."""

import types

import pytest
import tiny

from vit_jax import config as c
from vit_jax.training import console
from vit_jax.training.run import Dataset, Run


@pytest.mark.parametrize(
  ('trained_on', 'source', 'evaluated_on'),
  [
    ('tfds:cifar10:train[:98%]', None, 'tfds:cifar10 test'),
    ('tfds:cifar10', None, 'tfds:cifar10 test'),
    ('digits', None, 'digits test'),
    ('digits:train[:90%]', None, 'digits test'),
    ('digits', 'tfds:mnist', 'tfds:mnist test'),
    ('digits', 'tfds:mnist:train[98%:]', 'tfds:mnist train[98%:]'),
  ],
)
def test_evaluators_are_said_with_the_split_that_they_read(trained_on, source, evaluated_on):
  config = c.Config(
    batch_size=8,
    model=tiny.options(),
    data=c.DataConfig(source=trained_on, image_size=(8, 8)),
    evaluators={'other': c.ClassificationEvaluatorConfig(source=source)},
  )
  run = Run(config, Dataset(8, ('a', 'b')))
  text = console.data_text(run, {'other': types.SimpleNamespace(examples=1_000)})
  assert text.splitlines() == [
    f'Training data: {trained_on}, 8 images, 2 classes: a, b',
    f'Evaluator other: {evaluated_on}, 1,000 images',
  ]
