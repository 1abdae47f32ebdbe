"""Chosen images become records, each of them, of whatever kind its file is."""

import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.config import DataConfig
from vit_jax.data.decode import Picture
from vit_jax.data.sources import open_source
from vit_jax.prepare import run
from vit_jax.prepare.images import Shrinking
from vit_jax.selftrain import samples
from vit_jax.selftrain.choosing import Choice, Predictions
from vit_jax.selftrain.unlabelled import opened

pytestmark = pytest.mark.usefixtures('in_this_process')

AS_THEY_ARE = ('jpg', 'png', 'gif', 'bmp', 'webp', 'tiff', 'mpo')  # the bytes of the file become the record
CHOICE = Choice(top=1)
DECODED = ('ppm', 'pgm', 'tga', 'jp2', 'avif', 'ico', 'pcx', 'sgi', 'dds', 'dib', 'qoi')


def encoded(kind, seed):
  """A small picture as a file of a kind."""
  pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
  image, buffer = Image.fromarray(pixels), io.BytesIO()
  more = {'save_all': True, 'append_images': [image]} if kind == 'mpo' else {}
  image = image.convert('L') if kind == 'pgm' else image
  image.save(buffer, Image.registered_extensions()[f'.{kind}'], **more)
  return buffer.getvalue()


def labelled(source, workdir):
  """Writes the data set of all images of a source, with the classes 0, 1, 0, 1 …; its records by their image."""
  classes = (np.arange(len(source), dtype=np.int32) % 2)[:, None]
  predictions = Predictions(classes, np.full((len(source), 1), 0.35, np.float32))
  samples.prepare(source, predictions, CHOICE, ('a', 'b'), workdir)
  data = DataConfig(max_labels=1, label_weights=True)
  records = open_source(f'tfds:{workdir}/{samples.DATA_SET}', 'train', data=data)
  return [records[k] for k in range(len(records))]


def pixels(image, name='x'):
  return Picture(image, 3, name).pixels()


@pytest.mark.parametrize('endings', ['their own', 'jpg', 'none that is known'])
def test_every_image_that_teachers_read_becomes_a_record(tmp_path, endings):
  """A file that `prepare` knows as it is, also by a wrong name; any other one decoded, with the same pixels."""
  kinds = [*AS_THEY_ARE, *DECODED]
  contents = {kind: encoded(kind, seed) for seed, kind in enumerate(kinds)}
  paths = []
  for number, kind in enumerate(kinds):
    ending = {'their own': kind, 'jpg': 'jpg', 'none that is known': 'jpg)'}[endings]
    paths.append(tmp_path / 'images' / f'{number:02}.{ending}')
    paths[-1].parent.mkdir(exist_ok=True)
    paths[-1].write_bytes(contents[kind])
  found = labelled(opened([str(path) for path in paths]), tmp_path / 'run')
  assert len(found) == len(kinds)
  by_pixels = {pixels(record.image).tobytes(): record for record in found}
  for number, kind in enumerate(kinds):
    record = by_pixels[pixels(contents[kind]).tobytes()]
    assert record.label.tolist() == [number % 2]
    assert record.weights.tolist() == [1.0]  # hard, for a sigmoid too
    assert (record.image == contents[kind]) == (kind in AS_THEY_ARE), kind


def test_records_of_a_prepared_set_become_records_whatever_their_files_are_called(tmp_path):
  """The names of TFDS's records end in a bracket: 'flowers/train record 3 (photo.jpg)'."""
  folder = tmp_path / 'flowers/train/rose'
  folder.mkdir(parents=True)
  contents = {encoded(kind, seed) for seed, kind in enumerate(('mpo', 'ppm', 'jpg', 'mpo', 'tga'))}
  for number, content in enumerate(sorted(contents)):
    (folder / f'{number}.jpg').write_bytes(content)
  run.prepare(str(folder.parents[1]), str(tmp_path / 'set'), run.Options(Shrinking()))
  source = opened([f'tfds:{tmp_path}/set:train'])
  assert source[0].name.endswith('.jpg)')
  found = labelled(source, tmp_path / 'run')
  assert {pixels(record.image).tobytes() for record in found} == {pixels(one).tobytes() for one in contents}
  assert len(found) == len(contents)
