"""Captions of tars, parquet files and tables, written here by tarfile, pyarrow and csv: what training reads of them."""

import csv
import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
import tiny
from made_samples import parquet, picture, shard
from prepared_sets import prepared

from vit_jax import config as c
from vit_jax.data.config import DataConfig
from vit_jax.data.pipeline import TrainPipeline
from vit_jax.data.sources import open_source
from vit_jax.foundation.errors import UserError
from vit_jax.parallel import mesh
from vit_jax.prepare.tables import Columns
from vit_jax.training.run import open_training

pytestmark = pytest.mark.usefixtures('in_this_process')
TEXTS = [['a red fox'], ['zwei Füße 🦊'], ['"quoted", with, commas']]


def captions(destination: pathlib.Path, split: str = 'train') -> dict[bytes, list[str]]:
  """{encoded image: its captions}, as training reads them."""
  source = open_source(f'tfds:{destination}', split, data=DataConfig())
  assert source.class_names == () and set(source.labels()) == {-1}
  records = [source[number] for number in range(len(source))]
  assert all(record.label == -1 and record.captions for record in records)
  return {record.image: list(record.captions()) for record in records}


def expected(texts=TEXTS) -> dict[bytes, list[str]]:
  return {picture(number): own for number, own in enumerate(texts)}


def img2dataset(folder: pathlib.Path, texts, *, split: str = '') -> pathlib.Path:
  """Shards as img2dataset writes them: .jpg, .txt and .json of each sample, and beside each tar what it downloaded."""
  for number, (text,) in enumerate(texts):
    meta = {
      'url': 'https://x.org/1.jpg',
      'caption': text,
      'key': f'{number:09}',
      'status': 'success',
      'width': 8,
    }
    shard(folder / f'{split}{number:05}.tar', {'jpg': picture(number), 'txt': text or '', 'json': meta})
    parquet(folder / f'{split}{number:05}.parquet', {name: [value] for name, value in meta.items()})
    (folder / f'{split}{number:05}_stats.json').write_text('{}')
  return folder


@pytest.mark.parametrize('caption', ['txt', 'caption'])
def test_shards_of_img2dataset_give_each_image_its_caption(tmp_path, caption):
  """From the files .txt, and from the field of .json; the parquet files beside the tars are no images."""
  prepared(img2dataset(tmp_path / 'x', TEXTS), tmp_path / 'set', columns=Columns(caption=caption))
  assert captions(tmp_path / 'set') == expected()


@pytest.mark.slow  # the import takes seconds
def test_webdatasets_own_reader_sees_the_same_samples(tmp_path):
  wds = pytest.importorskip('webdataset')
  img2dataset(tmp_path / 'x', TEXTS)
  samples = wds.WebDataset([str(path) for path in sorted((tmp_path / 'x').glob('*.tar'))], shardshuffle=False)
  theirs = {sample['jpg']: [sample['txt'].decode()] for sample in samples}
  prepared(tmp_path / 'x', tmp_path / 'set', columns=Columns(caption='txt'))
  assert captions(tmp_path / 'set') == theirs


def test_parquet_of_hugging_face_may_have_several_captions_an_image(tmp_path):
  texts = [['a', 'b', 'c'], [' d '], ['e', 'f']]
  images = [{'bytes': picture(number), 'path': f'{number}.jpg'} for number in range(3)]
  parquet(tmp_path / 'x/test-00000-of-00001.parquet', {'image': images, 'caption': texts})
  prepared(tmp_path / 'x', tmp_path / 'set', columns=Columns(caption='caption'))
  assert captions(tmp_path / 'set', 'test') == expected([['a', 'b', 'c'], ['d'], ['e', 'f']])


@pytest.mark.parametrize('ending', ['csv', 'tsv', 'jsonl'])
def test_a_list_of_paths_and_captions_is_read_as_open_clip_does(tmp_path, ending):
  rows = [{'filepath': f'{number}.jpg', 'title': text} for number, (text,) in enumerate(TEXTS)]
  for number in range(3):
    (tmp_path / f'{number}.jpg').write_bytes(picture(number))
  with open(tmp_path / f'x.{ending}', 'w', newline='') as file:
    if ending == 'jsonl':
      file.writelines(json.dumps(row) + '\n' for row in rows)
    else:
      writer = csv.DictWriter(file, rows[0], delimiter='\t' if ending == 'tsv' else ',')
      writer.writeheader()
      writer.writerows(rows)
  prepared(tmp_path / f'x.{ending}', tmp_path / 'set', columns=Columns(caption='title'))
  assert captions(tmp_path / 'set') == expected()


def test_lines_of_one_image_become_one_record_with_all_captions(tmp_path):
  (tmp_path / '0.jpg').write_bytes(picture(0))
  (tmp_path / 'x.csv').write_text('image,caption\n0.jpg,first\n0.jpg,second\n0.jpg,first\n')
  columns = Columns(caption='caption')
  prepared(tmp_path / 'x.csv', tmp_path / 'three', columns=columns)
  assert len(open_source(f'tfds:{tmp_path / "three"}', 'train', data=DataConfig())) == 3
  prepared(tmp_path / 'x.csv', tmp_path / 'one', columns=columns, merge_copies=True)
  assert captions(tmp_path / 'one') == {picture(0): ['first', 'second']}


def test_images_without_a_caption_are_counted_and_named_and_left_out_only_when_asked(tmp_path):
  img2dataset(tmp_path / 'x', [*TEXTS, [None], ['  ']])
  columns = Columns(caption='txt')
  with pytest.raises(UserError, match=r"2 of 5 images of .* have no caption 'txt', such as 00003/000000.jpg"):
    prepared(tmp_path / 'x', tmp_path / 'set', columns=columns)
  prepared(tmp_path / 'x', tmp_path / 'set', columns=columns, skip_bad=True)
  assert captions(tmp_path / 'set') == expected()
  with open(tmp_path / 'set/bad_images.csv', newline='') as file:
    listed = [(row['image'], row['reason']) for row in csv.DictReader(file)]
  assert listed == [('00003/000000.jpg', 'has no caption'), ('00004/000000.jpg', 'has no caption')]


def test_labels_come_along_where_their_column_is_named(tmp_path):
  sample = {'jpg': picture(0), 'cls': '1', 'txt': 'a fox'}
  shard(tmp_path / 'x.tar', sample, sample | {'jpg': picture(1), 'cls': '0', 'txt': 'an owl'})
  prepared(tmp_path / 'x.tar', tmp_path / 'set', columns=Columns(caption='txt', label='cls'))
  source = open_source(f'tfds:{tmp_path / "set"}', 'train', data=DataConfig())
  found = {source[k].image: (source.class_names[source[k].label], *source[k].captions()) for k in (0, 1)}
  assert found == {picture(0): ('1', 'a fox'), picture(1): ('0', 'an owl')}


@pytest.mark.parametrize(
  'caption,message',
  [
    ('cap', r"have no caption 'cap', such as 00000/000000.jpg; correct --caption_column"),
    ('width', r'00000.tar: 000000.jpg has the caption 8; a caption is a text'),
  ],
)
def test_a_wrong_caption_column_is_named(tmp_path, caption, message):
  with pytest.raises(UserError, match=message):
    prepared(img2dataset(tmp_path / 'x', TEXTS), tmp_path / 'set', columns=Columns(caption=caption))


def test_one_of_several_captions_is_drawn_by_the_example_alone(tmp_path):
  """The same for any step that is asked first, as a resumed run does; over the steps all captions are drawn."""
  texts = [[f'{number}{letter}' for letter in 'abc'] for number in range(8)]
  images = [picture(number) for number in range(8)]
  parquet(tmp_path / 'x.parquet', {'image': images, 'caption': texts})
  prepared(tmp_path / 'x.parquet', tmp_path / 'set', columns=Columns(caption='caption'))
  config = c.Config(
    total='40 steps',
    batch_size=8,
    model=tiny.two_towers(patch=4),
    data=DataConfig(source=f'tfds:{tmp_path / "set"}', image_size=(8, 8), crop='resize', flip=False),
    objective=c.ContrastiveObjective(prompts=('{text}',)),
  )

  def pipeline():
    run, source = open_training(config)
    options = {
      'batch_size': 8,
      'seed': 0,
      'sharding': mesh.batch_sharding(run.mesh),
      'captions': run.captions(),
    }
    return TrainPipeline(source, config.data, **options)

  first, drawn = pipeline(), {}
  batches = {step: jax.device_get(first.batch(step)) for step in range(40)}
  for batch in batches.values():
    for image, text in zip(batch['image'], batch['text'], strict=True):
      said = bytes(int(number) - 3 for number in text if number > 2).decode()
      drawn.setdefault(image.tobytes(), set()).add(said)
  assert sorted(map(sorted, drawn.values())) == texts
  again = jax.device_get(pipeline().batch(37))
  for name in ('image', 'text'):
    np.testing.assert_array_equal(again[name], batches[37][name])
  with pytest.raises(
    UserError, match=r"prompts has 'a photo of a {}.', and the data has captions and no classes"
  ):
    open_training(dataclasses.replace(config, objective=c.ContrastiveObjective()))[0].captions()
