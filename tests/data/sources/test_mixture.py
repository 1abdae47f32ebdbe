import numpy as np
import pytest
from fake_data import FakeSource

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source, open_training
from vit_jax.data.sources.base import Part
from vit_jax.data.sources.mixture import Mixture


@pytest.fixture(autouse=True)
def data_dir(shades_dir, tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(shades_dir))
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))


def opened(spec):
  return open_source(spec, 'train', data=DataConfig(max_labels=4))


def test_records_follow_each_other_and_classes_are_united_by_name():
  specs = (('digits:train[:20]', 3), ('tfds:shades', 1), ('digits:test[:5]', 0.5))
  data = DataConfig(mixture=specs)
  mixture = open_training(data, 0)
  assert data.title == 'digits:train[:20] + tfds:shades + digits:test[:5]'
  assert mixture.class_names == (*'0123456789', 'dark', 'middle', 'light')
  assert len(mixture) == 35 and mixture.parts == (Part(20, 3), Part(10, 1), Part(5, 0.5))
  sources = [opened(spec) for spec, _ in specs]
  expected = [(source, i) for source in sources for i in range(len(source))]
  for record, (source, i) in zip((mixture[i] for i in range(35)), expected, strict=True):
    assert record.name == source[i].name
    assert mixture.class_names[record.label] == source.class_names[source[i].label]


def test_without_mixture_the_training_data_is_the_source_itself():
  assert type(open_training(DataConfig(), 0)) is type(opened('digits'))


@pytest.mark.parametrize(
  'specs',
  [('digits:train[:20]', 'tfds:shades'), ('tfds:lists', 'digits:test[:5]'), ('tfds:shades', 'tfds:lists')],
)
def test_labels_are_those_of_the_records(specs):
  mixture = Mixture([opened(spec) for spec in specs], [1.0] * len(specs))
  labels = mixture.labels()
  assert labels.dtype == np.int32 and len(labels) == len(mixture)
  assert labels.ndim == (2 if 'tfds:lists' in specs else 1)
  for row, index in zip(labels, range(len(mixture)), strict=True):
    assert row[row >= 0].tolist() == np.ravel(mixture[index].label).tolist()


def test_labels_of_lists_are_padded_to_the_longest():
  lists, single = FakeSource(2), FakeSource(3)
  lists.labels = lambda: np.array([[0, 1], [1, -1]], np.int32)
  single.class_names = ('1', 'new', '0')
  got = Mixture([single, lists], [1.0, 1.0]).labels()
  assert got.tolist() == [[0, -1], [1, -1], [2, -1], [2, 0], [0, -1]]
