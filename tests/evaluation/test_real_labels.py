"""ImageNet ReaL: the metric by hand, the file of its labels, and the numbering of classes."""

import io
import json
import pathlib
import unittest.mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax import config as c
from vit_jax.data.pipeline import EvalPipeline
from vit_jax.data.sources.base import Record, Source
from vit_jax.evaluation import classification, classification_metrics, real_labels
from vit_jax.evaluation.real_labels import RealLabels
from vit_jax.foundation.errors import UserError
from vit_jax.parallel.mesh import batch_sharding, make_mesh
from vit_jax.training.run import Dataset, Run, evaluate

WORDNET_IDS = [f'n{number:08}' for number in range(1000)]
# In real.json's order, of images 1 to 8; raters found no class in the third and the sixth.
LISTS = [[1], [2, 3], [], [4], [5, 6, 7], [], [999], [0]]


@pytest.fixture
def path(tmp_path):
  (tmp_path / 'real.json').write_text(json.dumps(LISTS))
  return str(tmp_path / 'real.json')


class Photos(Source):
  """Validation images in another order; their own label, 500, is in none of ReaL's lists."""

  NUMBERS = (5, 3, 1, 2, 8, 6, 4)
  class_names = WORDNET_IDS

  def __len__(self):
    return len(self.NUMBERS)

  def labels(self):
    return np.full(len(self), 500)

  def __getitem__(self, index):
    file = f'ILSVRC2012_val_{self.NUMBERS[index]:08}.JPEG'
    image = np.full((6, 7, 3), index, np.uint8)
    return Record(image, 500, f'imagenet2012/validation record {index} ({file})')


@pytest.mark.parametrize('batch_size', [3, 16])
def test_real_accuracy_leaves_out_images_without_labels(path, batch_size):
  """Images 5, 3, 1, 2, 8, 6, 4 are taken for 7, 7, 1, 1, 0, 6, 4: 3 and 6 do not count, only 2 is wrong."""
  said = np.array([7, 7, 1, 1, 0, 6, 4])
  data = c.DataConfig(image_size=(6, 7))
  mesh = make_mesh(c.MeshConfig(), jax.devices()[:1])
  labels = RealLabels(path, WORDNET_IDS, WORDNET_IDS)
  options = {'crop': 'resize', 'resize': None, 'sharding': batch_sharding(mesh), 'real_labels': labels}
  batches = EvalPipeline(Photos(), data, batch_size=batch_size, **options)

  def step(params, batch):
    nothing = dict.fromkeys(('confidence', 'rank', 'loss'), np.zeros(batch['label'].shape))
    prediction = said[np.asarray(batch.pop('image'))[:, 0, 0, 0]]
    return {'examples': batch | nothing | {'prediction': prediction}, 'num_classes': 1000}

  examples = classification.collect(step, {'model': {}}, batches)['model']
  metrics = classification_metrics.summarise(examples)
  assert metrics['real_accuracy'] == 4 / 5
  assert metrics['accuracy'] == 0 and len(examples.prediction) == 7
  predictions, no_labels = np.zeros(2, np.int32), np.full((2, 4), -1)
  assert np.isnan(classification_metrics.real_accuracy(predictions, no_labels))


def test_labels_are_numbered_as_the_model_numbers_its_classes(path):
  """A model that numbers the classes backwards, and one that knows only some of them."""
  backwards = RealLabels(path, WORDNET_IDS, WORDNET_IDS[::-1])
  assert backwards.of('ILSVRC2012_val_00000002.JPEG').tolist() == [997, 996, -1]
  few = RealLabels(path, WORDNET_IDS, [WORDNET_IDS[6], WORDNET_IDS[2]])
  assert few.of('/val/n00000002/ILSVRC2012_val_00000002.JPEG')[0] == 1
  # What it cannot say counts as wrong, not as unlabelled.
  assert few.of('ILSVRC2012_val_00000001.JPEG')[0] >= 1000
  assert few.of('ILSVRC2012_val_00000003.JPEG').tolist() == [-1, -1, -1]


@pytest.mark.parametrize('name', ['photo.jpg', 'ILSVRC2012_val_00000009.JPEG'])
def test_images_without_a_number_are_named(path, name):
  with pytest.raises(UserError, match=f'{name} is not named ILSVRC2012_val_00000001 to 00000008'):
    RealLabels(path, WORDNET_IDS, WORDNET_IDS).of(name)


@pytest.mark.parametrize(
  ('text', 'said'),
  [
    (None, 'cannot be read from'),
    ('[[1], ', 'cannot be read from'),
    ('[[1], [1000]]', "is not ImageNet ReaL's real.json"),
  ],
)
def test_a_file_that_is_not_real_json_is_refused(tmp_path, text, said):
  if text is not None:
    (tmp_path / 'labels.json').write_text(text)
  with pytest.raises(UserError, match=said):
    RealLabels(str(tmp_path / 'labels.json'), WORDNET_IDS, WORDNET_IDS)


def test_other_classes_than_imagenets_are_refused(path):
  with pytest.raises(UserError, match='need the 1,000 classes of ImageNet'):
    RealLabels(path, ('cat', 'dog'), WORDNET_IDS)
  words = [f'cat {number:03}' for number in range(1000)]  # as a folder has them, sorted, but not by their ids
  with pytest.raises(UserError, match=r'under their WordNet ids .* has 1000 classes, cat 000, cat 001'):
    RealLabels(path, words, words)


def test_download_fetches_the_public_address(path, monkeypatch):
  download = unittest.mock.Mock(return_value=pathlib.Path(path))
  monkeypatch.setattr(real_labels.download, 'local_file', download)
  assert RealLabels('download', WORDNET_IDS, WORDNET_IDS).longest == 3
  download.assert_called_once_with(real_labels.URL, 'json')


@pytest.mark.slow
def test_an_evaluator_of_imagenet_gives_real_accuracy(path, tmp_path, monkeypatch):
  """On TFDS's imagenet2012, with a model that says 4 of each image; six of the eight count."""
  builder = tfds.builder('imagenet2012', data_dir=tmp_path)
  info = tfds.core.DatasetInfo(builder=builder, features=builder.info.features)
  pathlib.Path(info.data_dir).mkdir(parents=True)
  writer = tfds.core.SequentialWriter(info, max_examples_per_shard=10, file_format='array_record')
  writer.initialize_splits(['validation'])
  file = io.BytesIO()
  Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, 'jpeg')
  names = [f'ILSVRC2012_val_{number:08}.JPEG' for number in range(8, 0, -1)]
  images = [{'image': file.getvalue(), 'label': 4, 'file_name': name} for name in names]
  writer.add_examples({'validation': images})
  writer.close_all()
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  class_names = tuple(builder.info.features['label'].names)
  config = c.Config(
    total='1 steps',
    batch_size=8,
    model=c.ViTConfig(variant='custom', patch=8, width=8, mlp_dim=8, depth=1, heads=1),
    data=c.DataConfig(source='tfds:imagenet2012', image_size=(8, 8)),
    evaluators={'val': c.ClassificationEvaluatorConfig(split='validation', real_labels=path, batch_size=3)},
  )
  run = Run(config, Dataset(8, class_names), jax.devices()[:1])
  state = run.program.init(np.uint32(0))
  state.params['head']['bias'] = jnp.zeros(1000).at[4].set(1.0)
  scores = evaluate(state, run.open_evaluators())
  assert scores['val/real_accuracy'] == 1 / 6 and scores['val/accuracy'] == 1
