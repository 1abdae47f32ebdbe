"""Every example counts once, whatever the batch size and the number of devices."""

import jax
import numpy as np
import pytest

from vit_jax import config as c
from vit_jax.data import on_device, sources
from vit_jax.data.pipeline import EvalPipeline
from vit_jax.evaluation import classification
from vit_jax.parallel.mesh import batch_sharding, make_mesh
from vit_jax.training.step import make_train_step

CONFIG = c.Config(
  total='1 steps',
  batch_size=64,
  model=c.Model(variant='custom', patch=4, width=16, mlp_dim=16, depth=1, heads=2),
  data=c.Data(image_size=(8, 8), channels=1),
  loss=c.Loss(label_smoothing=0.1),
)


def evaluate(batch_size: int, devices: int, head: np.ndarray) -> dict[str, float]:
  mesh = make_mesh(CONFIG.mesh, jax.devices()[:devices])
  source = sources.open_source('digits', 'test', data=CONFIG.data)
  evaluator = c.Evaluator()
  batches = EvalPipeline(source, CONFIG.data, evaluator, batch_size=batch_size, sharding=batch_sharding(mesh))
  program = make_train_step(CONFIG, mesh, num_classes=10, examples=100)
  params = program.init(np.uint32(0)).params
  params['head']['kernel'] = jax.device_put(head, params['head']['kernel'].sharding)
  return classification.evaluate(program.evaluate, {'model': params}, batches)['model']


@pytest.fixture(scope='module')
def head() -> np.ndarray:
  return np.random.default_rng(0).normal(size=(16, 10)).astype(np.float32)


@pytest.fixture(scope='module')
def expected(head) -> dict[str, float]:
  """The metrics computed in NumPy from the logits of one batch that holds everything."""
  from flax import nnx

  from vit_jax import models

  source = sources.open_source('digits', 'test', data=CONFIG.data)
  images = np.stack([source[i].image for i in range(len(source))])[..., None]
  labels = np.array([source[i].label for i in range(len(source))])
  model = models.build(
    CONFIG.model, image_size=(8, 8), channels=1, num_classes=10, rngs=nnx.Rngs(params=jax.random.key(0))
  )
  model.head.kernel[...] = head
  logits = np.asarray(model(on_device.prepare(images, CONFIG.data)), np.float64)
  losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(labels)), labels]
  return {'accuracy': (logits.argmax(-1) == labels).mean(), 'loss': losses.mean(), 'count': len(labels)}


@pytest.mark.parametrize(('batch_size', 'devices'), [(360, 1), (7, 1), (64, 8), (100, 8), (1, 2), (1000, 4)])
def test_against_numpy(batch_size, devices, head, expected):
  scores = evaluate(batch_size, devices, head)
  assert scores['count'] == 360
  assert scores['accuracy'] == expected['accuracy']  # exactly
  assert scores['loss'] == pytest.approx(expected['loss'], rel=1e-5)  # without label smoothing
  assert 0.01 < scores['accuracy'] < 0.5
