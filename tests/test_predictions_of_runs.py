"""What `predict` and the pictures say of training runs: of their EMA, and where they were trained by sigmoids."""

import json
import pathlib

import fork_server
import numpy as np
import pytest
from PIL import Image

import vit_jax
from vit_jax import config as c
from vit_jax.checkpoint.manager import Manager
from vit_jax.foundation import pytrees
from vit_jax.models.base import Architecture
from vit_jax.pretrained import formats
from vit_jax.pretrained.base import FORMATS, SIGMOID_LOST
from vit_jax.visualize.observations import Observer

CLASSES = ['ant', 'bee', 'cat']


@pytest.fixture(scope='module')
def place(tmp_path_factory) -> pathlib.Path:
  """A folder with a photograph and two runs, `softmax` and `sigmoid`, whose EMA differs from their parameters."""
  folder = tmp_path_factory.mktemp('place')
  rng = np.random.default_rng(0)
  Image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(folder / 'photo.png')
  for loss in ('softmax', 'sigmoid'):
    config = c.Config(
      model=c.ViTConfig('custom', patch=8, width=16, mlp_dim=16, depth=2, heads=2),
      data=c.DataConfig(image_size=(16, 16)),
      objective=c.ClassificationObjective(loss=loss),
      evaluators={'val': c.ClassificationEvaluatorConfig()},
      ema=0.9,
    )
    shapes = Architecture(config.model, (16, 16), 3, len(CLASSES)).shapes()
    items = {
      item: pytrees.unflatten(
        {path: rng.standard_normal(leaf.shape).astype(np.float32) for path, leaf in shapes.items()}
      )
      for item in ('params', 'ema')
    }
    meta = {'config': c.as_json(config), 'class_names': CLASSES, 'examples': 9}
    with Manager(folder / loss / 'checkpoints', config.checkpoint) as manager:
      manager.save(3, items, meta)
  return folder


def predicted(place: pathlib.Path, *flags: str) -> list[float]:
  """The probability of each class of the photograph, by the command."""
  result = fork_server.run('vit_jax.predict', *flags, '--format=json', 'photo.png', cwd=place)
  assert result.returncode == 0, result.stderr
  (entry,) = json.loads(result.stdout)
  return [best['probability'] for best in sorted(entry['predictions'], key=lambda best: best['class'])]


@pytest.mark.nightly
@pytest.mark.slow
def test_ema_as_npz_is_predicted_with_as_the_ema_of_the_run_bit_for_bit(place):
  result = fork_server.run('vit_jax.convert', 'softmax', 'ema.npz', '--weights=ema', cwd=place)
  assert result.returncode == 0, result.stderr
  of_run = predicted(place, '--checkpoint=softmax', '--weights=ema')
  assert predicted(place, '--checkpoint=ema.npz') == of_run
  assert predicted(place, '--checkpoint=softmax', '--weights=raw') != of_run
  model = vit_jax.load(place / 'ema.npz')
  logits = model(model.preprocess([Image.open(place / 'photo.png')]))
  np.testing.assert_array_equal(np.asarray(model.probabilities(logits))[0], np.float32(of_run))


@pytest.mark.slow
@pytest.mark.parametrize('loss', ['softmax', 'sigmoid'])
def test_probabilities_are_those_of_the_loss_in_predict_and_in_pictures(place, loss):
  model = vit_jax.load(place / loss, weights='raw')
  photo = Image.open(place / 'photo.png')
  logits = np.asarray(model(model.preprocess([photo]))[0], np.float64)
  expected = 1 / (1 + np.exp(-logits)) if loss == 'sigmoid' else np.exp(logits) / np.exp(logits).sum()
  assert (abs(expected.sum() - 1) > 1e-3) == (loss == 'sigmoid')
  found = predicted(place, f'--checkpoint={loss}', '--weights=raw')
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  pictured = dict(Observer(model).look(photo).predictions)
  np.testing.assert_allclose([pictured[name] for name in CLASSES], expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', FORMATS.names())
def test_converted_sigmoid_run_keeps_its_probabilities_or_says_that_it_cannot(place, name):
  written, sigmoid = FORMATS[name](), formats.read(place / 'sigmoid', weights='raw')
  if written.unfit(sigmoid) is not None:
    pytest.skip('the format cannot hold the model')
  notes = written.write(sigmoid, place / f'{name}.npz')
  assert vit_jax.load(place / f'{name}.npz').link == 'sigmoid' or SIGMOID_LOST in notes
