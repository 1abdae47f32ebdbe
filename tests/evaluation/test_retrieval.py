"""Recall of images by captions and of captions by images, beside NumPy in float64 that sorts all pairs."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from flax import nnx
from PIL import Image

from vit_jax import config as c
from vit_jax.evaluation import retrieval
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.pretrained import tokenizing
from vit_jax.training.run import open_training

LENGTH = 24


def mesh(devices: int):
  return mesh_lib.make_mesh(c.MeshConfig(), jax.devices()[:devices])


def sorted_ranks(queries: np.ndarray, gallery: np.ndarray, owns: list[set[int]]) -> list[int]:
  """The place of each query's first own item among all of the gallery, sorted by cosine in float64."""
  orders = np.argsort(-(queries.astype(np.float64) @ gallery.T.astype(np.float64)), axis=1).tolist()
  return [min(map(order.index, own)) for order, own in zip(orders, owns, strict=True)]


def test_ranks_are_those_of_a_sort_however_many_devices(monkeypatch):
  """Also over several parts of the queries, of which the last is not full."""
  monkeypatch.setattr(retrieval, '_ROWS', 16)
  rng = np.random.default_rng(0)
  queries, gallery = (rng.normal(size=(count, 6)).astype(np.float32) for count in (37, 80))
  owns = [set(rng.choice(80, rng.integers(1, 4), replace=False).tolist()) for _ in range(37)]
  pairs = np.array([(query, item) for query, own in enumerate(owns) for item in own])
  for devices in (1, 8):
    found = retrieval.ranks(queries, gallery, pairs, mesh(devices))
    assert found.tolist() == sorted_ranks(queries, gallery, owns)


@pytest.mark.parametrize('value', [1.0, np.nan])
def test_features_that_tell_nothing_apart_find_nothing(value):
  same = np.full((12, 4), value, np.float32)
  pairs = np.stack([np.arange(12)] * 2, axis=1)
  assert retrieval.ranks(same, same, pairs, mesh(1)).tolist() == [11] * 12


@pytest.fixture
def config(tmp_path) -> c.Config:
  """Thirty noisy images in a folder with a caption beside each, of which some are equal."""
  rng = np.random.default_rng(0)
  for number in range(30):
    folder = tmp_path / 'images' / 'ab'[number % 2]
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(folder / f'{number}.png')
    (folder / f'{number}.txt').write_text(f'picture {number % 20}')
  return c.Config(
    total='2 steps',
    batch_size=8,
    model=tiny.two_towers(patch=2, text_length=LENGTH),
    data=c.DataConfig(source=f'folder:{tmp_path}/images:all', image_size=(8, 8), channels=1, crop='resize'),
    objective=c.ContrastiveObjective(prompts=('{text}',)),
    evaluators={'found': c.RetrievalEvaluatorConfig(split='all')},
  )


def test_recall_is_that_of_numpy_of_all_pairs_in_float64(config):
  run, source = open_training(config)
  evaluator = run.open_evaluators()['found']
  assert evaluator.examples == 30 and evaluator.notes == (
    'found: 30 images with 30 captions, 20 of them different.',
  )
  model = Architecture(config.model, (8, 8), 1, 0).build(nnx.Rngs(0))
  params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
  records = [source[number] for number in range(30)]
  words = [record.captions()[0] for record in records]
  different = sorted(set(words))
  pixels = np.stack([np.asarray(Image.open(record.name), np.float32)[..., None] for record in records])
  images = np.asarray(model(pixels / 127.5 - 1))
  texts = np.asarray(model.text_features(tokenizing.byte_tokens(different, LENGTH)))
  own = [different.index(word) for word in words]
  pictures = [{i for i, number in enumerate(own) if number == text} for text in range(20)]
  found = {
    'image_to_text': sorted_ranks(images, texts, [{number} for number in own]),
    'text_to_image': sorted_ranks(texts, images, pictures),
  }
  assert evaluator.run({'': params}, {}) == {
    f'found/{way}_recall_at_{k}': np.mean([rank < k for rank in of])
    for way, of in found.items()
    for k in (1, 5, 10)
  }
  assert 0 < np.mean([rank < 5 for rank in found['text_to_image']]) < 1


def test_it_is_refused_without_captions_or_texts(config):
  digits = {'found': c.RetrievalEvaluatorConfig(source='digits')}
  with pytest.raises(UserError, match=r'evaluators.found needs captions, and digits.* has none'):
    open_training(dataclasses.replace(config, evaluators=digits))[0].open_evaluators()
  classifier = dataclasses.replace(config, model=tiny.options(patch=2), objective=c.ClassificationObjective())
  with pytest.raises(UserError, match=r'is of type retrieval, and classification has no texts'):
    open_training(classifier)[0].open_evaluators()
