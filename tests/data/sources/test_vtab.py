"""VTAB's tasks against its authors' definitions, on constructed records."""

import dataclasses

import fake_vtab
import numpy as np
import pytest
import tensorflow_datasets as tfds

from vit_jax import recipes
from vit_jax.data.config import DataConfig
from vit_jax.data.decode import Picture
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.data.sources import open_source, open_training, vtab
from vit_jax.foundation.errors import UserError


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  """A data directory with all 16 data sets of VTAB, found by name."""
  folder = tmp_path_factory.mktemp('vtab')
  for dataset in sorted({task.dataset for task in vtab.TASKS.values()}):
    fake_vtab.prepare(dataset, folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('TFDS_DATA_DIR', str(folder))
    yield folder


def test_nineteen_tasks_in_three_groups():
  groups = [task.group for task in vtab.TASKS.values()]
  assert [groups.count(group) for group in vtab.GROUPS] == [7, 4, 8] and len(groups) == 19
  # BiT's appendix F.
  not_flipped = {name for name, task in vtab.TASKS.items() if not task.flip}
  not_cropped = {name for name, task in vtab.TASKS.items() if not task.crop}
  assert not_flipped == {'dsprites_orientation', 'smallnorb_azimuth', 'dsprites_location'}
  assert not_cropped == {'clevr_count', 'clevr_distance', 'dmlab', 'kitti_distance', 'dsprites_location'}


OWN = ('train[:800]+validation[:200]', 'test')


@pytest.mark.parametrize(
  ('name', 'train', 'thousand', 'test'),
  [
    ('caltech101', 3060, 'train[:800]+train[2754:2954]', 'test'),
    ('cifar100', 50_000, 'train[:800]+train[45000:45200]', 'test'),
    ('dtd', 1880, *OWN),
    ('oxford_flowers102', 1020, *OWN),
    ('oxford_iiit_pet', 3680, 'train[:800]+train[2944:3144]', 'test'),
    ('svhn', 73_257, 'train[:800]+train[65931:66131]', 'test'),
    ('sun397', 76_128, *OWN),
    ('patch_camelyon', 262_144, *OWN),
    ('eurosat', 27_000, 'train[:800]+train[16200:16400]', 'train[21600:]'),
    ('resisc45', 31_500, 'train[:800]+train[18900:19100]', 'train[25200:]'),
    ('diabetic_retinopathy', 35_126, *OWN),
    ('clevr_count', 70_000, 'train[:800]+train[63000:63200]', 'validation'),
    ('clevr_distance', 70_000, 'train[:800]+train[63000:63200]', 'validation'),
    ('dmlab', 65_550, *OWN),
    ('kitti_distance', 6347, *OWN),
    ('dsprites_location', 737_280, 'train[:800]+train[589824:590024]', 'train[663552:]'),
    ('dsprites_orientation', 737_280, 'train[:800]+train[589824:590024]', 'train[663552:]'),
    ('smallnorb_azimuth', 24_300, 'train[:800]+test[:200]', 'test[50%:]'),
    ('smallnorb_elevation', 24_300, 'train[:800]+test[:200]', 'test[50%:]'),
  ],
)
def test_splits_are_the_published_ones(name, train, thousand, test):
  """As big_vision's and Scenic's configs for VTAB write them out."""
  parts = {part: vtab.TASKS[name].split(part, {'train': train}) for part in vtab.SPLITS}
  assert parts['train800val200'] == thousand and parts['test'] == test
  assert f'{parts["train800"]}+{parts["val200"]}' == thousand


def objects(**features):
  return {'objects': {key: np.array(value) for key, value in features.items()}}


def depths(*values):
  return objects(pixel_coords=[(100.0, 50.0, value) for value in values])


def cars(*pairs):
  types, ahead = zip(*pairs, strict=True) if pairs else ((), ())
  return objects(type=np.array(types, np.int64), location=[(-3.0, 1.0, value) for value in ahead])


PLAIN = [
  *('caltech101', 'cifar100', 'dtd', 'oxford_flowers102', 'oxford_iiit_pet', 'svhn', 'sun397'),
  *('patch_camelyon', 'eurosat', 'resisc45', 'diabetic_retinopathy', 'dmlab'),
]
CASES = [
  *((name, {'label': n, 'coarse_label': 0, 'species': 0}, n) for name in PLAIN for n in (0, 1)),
  *(('smallnorb_azimuth', {'label_azimuth': n, 'label_elevation': 0}, n) for n in (0, 17)),
  *(('smallnorb_elevation', {'label_azimuth': 0, 'label_elevation': n}, n) for n in (0, 8)),
  *(('dsprites_location', {'label_x_position': n, 'label_y_position': 0}, n // 2) for n in range(32)),
  # Of 40 angles three, two, three, two … become one class.
  *(
    ('dsprites_orientation', {'label_orientation': n}, expected)
    for n, expected in enumerate(np.repeat(range(16), [3, 2] * 8))
  ),
  *(('clevr_count', objects(size=[0] * count), count - 3) for count in range(3, 11)),
  ('clevr_distance', depths(7.5, 30.0), 0),
  ('clevr_distance', depths(12.0, 8.0), 0),
  ('clevr_distance', depths(8.25), 1),
  ('clevr_distance', depths(8.5), 1),
  ('clevr_distance', depths(8.75), 2),
  ('clevr_distance', depths(9.25), 3),
  ('clevr_distance', depths(9.75, 9.8, 20.0), 4),
  ('clevr_distance', depths(10.5), 5),
  ('kitti_distance', cars((0, 5.0), (1, 50.0)), 0),
  ('kitti_distance', cars((0, 8.0)), 0),
  ('kitti_distance', cars((3, 5.0), (1, 9.0)), 1),  # a pedestrian is no vehicle
  ('kitti_distance', cars((2, 20.5), (5, 1.0)), 2),
  ('kitti_distance', cars((3, 5.0), (4, 1.0), (5, 2.0), (6, 2.0), (7, 3.0)), 3),
  ('kitti_distance', cars(), 3),
]


@pytest.mark.parametrize(('name', 'record', 'expected'), CASES)
def test_label_is_the_one_that_the_authors_define(name, record, expected):
  assert vtab.TASKS[name].label(record) == expected


def test_every_task_has_cases():
  assert {name for name, _, _ in CASES} == set(vtab.TASKS)


@pytest.mark.slow
@pytest.mark.parametrize('name', vtab.TASKS)
def test_source_reads_prepared_files_and_the_recipe_makes_a_batch_of_them(name, prepared, split_over):
  """1,000 records with their classes and three channels."""
  task = vtab.TASKS[name]
  source = open_source(f'{task.source}:train800val200', 'train', data=DataConfig())
  assert len(source) == 1000 and len(source.class_names) == task.num_classes
  labels = source.labels()
  assert labels.min() >= 0 and labels.max() < task.num_classes
  raw = tfds.data_source(task.dataset, split='train[:800]', data_dir=prepared)
  assert [source[i].label for i in range(10)] == [task.label(raw[i]) for i in range(10)]
  pixels = Picture(source[0].image, 3, source[0].name).pixels()
  np.testing.assert_array_equal(pixels, np.broadcast_to(raw[0]['image'], pixels.shape) * task.scale)
  assert len(open_source(task.source, 'val200', data=DataConfig())) == 200
  data = recipes.vtab('b16', name).data
  data = dataclasses.replace(data, image_size=(16, 16), resize=data.resize and 19)
  batch = TrainPipeline(open_training(data, 0), data, batch_size=8, seed=0, sharding=split_over(1)).batch(0)
  assert batch['image'].shape == (8, 16, 16, 3) and (np.asarray(batch['label']) < task.num_classes).all()


@pytest.mark.slow
def test_pixels_of_dsprites_are_scaled_to_black_and_white(prepared):
  source = open_source('vtab:dsprites_location', 'val200', data=DataConfig())
  assert {int(source[i].image.max()) for i in range(10)} == {0, 255}


@pytest.mark.parametrize(
  ('spec', 'said'),
  [
    ('vtab:clevr', 'none of the 19 tasks of VTAB; did you mean vtab:clevr_count'),
    ('vtab:dmlab:validation', 'has no split .validation.; it has train, val, trainval, test, train800'),
  ],
)
def test_wrong_task_or_split_names_those_there_are(spec, said, prepared):
  with pytest.raises(UserError, match=said):
    open_source(spec, 'test', data=DataConfig())


def test_missing_data_names_the_command_that_prepares_it(tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  with pytest.raises(UserError, match='tfds build diabetic_retinopathy_detection/btgraham-300 --file_format'):
    open_source('vtab:diabetic_retinopathy', 'test', data=DataConfig())
