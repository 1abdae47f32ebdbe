"""Prepared data in buckets: records by ranges, as the array_record library reads them from a disk."""

import pathlib

import numpy as np
import pytest
from array_record.python import array_record_module
from bucket_emulators import Place, places

from vit_jax.data.config import DataConfig
from vit_jax.data.sources import open_source
from vit_jax.data.sources.bucket_records import BucketRecords, Span
from vit_jax.foundation.buckets import Entry
from vit_jax.foundation.errors import UserError


class Files:
  """The part of a bucket that records are read through, on a disk."""

  def __init__(self):
    self.bytes_read = 0

  def entry(self, address: str) -> Entry:
    return Entry(address, pathlib.Path(address).stat().st_size, '')

  def read(self, address: str, first: int, last: int) -> bytes:
    self.bytes_read += last - first
    return pathlib.Path(address).read_bytes()[first:last]


def write(path: pathlib.Path, options: str, sizes) -> list[bytes]:
  rng = np.random.default_rng(0)
  records = [rng.integers(0, 8, size, np.uint8).tobytes() for size in sizes]
  writer = array_record_module.ArrayRecordWriter(str(path), options)
  for record in records:
    writer.write(record)
  writer.close()
  return records


@pytest.mark.parametrize(
  'options', ['group_size:1,uncompressed', 'group_size:1', 'group_size:1,brotli:4', 'group_size:3,zstd:3']
)
def test_records_are_those_that_the_library_wrote(tmp_path, options):
  sizes = [1, 300, 70_000, 65_536, 5, 200_000, 64_000, 1200] * 4 + [7] * 500
  records = write(tmp_path / 'a', options, sizes)
  found = BucketRecords(Files(), [Span(str(tmp_path / 'a'), 0, len(records))])
  assert [found[number] for number in range(len(found))] == records


def test_spans_skip_and_take(tmp_path):
  records = write(tmp_path / 'a', 'group_size:1,uncompressed', [100] * 10)
  found = BucketRecords(Files(), [Span(str(tmp_path / 'a'), 7, 2), Span(str(tmp_path / 'a'), 0, 3)])
  assert [found[number] for number in range(5)] == [records[number] for number in (7, 8, 0, 1, 2)]


def test_a_record_costs_its_bytes_and_a_header(tmp_path):
  write(tmp_path / 'a', 'group_size:1,uncompressed', [100_000] * 10)
  files = Files()
  found = BucketRecords(files, [Span(str(tmp_path / 'a'), 0, 10)])
  found[0]
  before = files.bytes_read
  found[7]
  assert files.bytes_read - before < 100_200


@pytest.mark.parametrize('cut', [0, 65_536, -1000, -65_536])
def test_a_damaged_file_is_an_error_and_never_other_bytes(tmp_path, cut):
  records = write(tmp_path / 'a', 'group_size:1', [1000] * 200)
  content = (tmp_path / 'a').read_bytes()
  (tmp_path / 'a').write_bytes(content[:cut] if cut else b'')
  with pytest.raises(ValueError):
    BucketRecords(Files(), [Span(str(tmp_path / 'a'), 0, len(records))])[0]


@pytest.mark.slow
def test_changed_bytes_are_an_error_or_the_record_of_that_length(tmp_path):
  records = write(tmp_path / 'a', 'group_size:1', [60] * 20)
  content = (tmp_path / 'a').read_bytes()
  rng = np.random.default_rng(1)
  errors = 0
  for _ in range(300):
    changed = bytearray(content)
    changed[rng.integers(0, 2000)] = rng.integers(0, 256)
    (tmp_path / 'a').write_bytes(changed)
    found = BucketRecords(Files(), [Span(str(tmp_path / 'a'), 0, len(records))])
    try:
      assert all(len(found[number]) == 60 for number in range(20))
    except (ValueError, IndexError, OSError):
      errors += 1
  assert errors


@pytest.fixture(scope='module')
def place():
  with places('gs') as found:
    yield found


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


def opened(spec: str, split: str = 'train'):
  return open_source(spec, split, data=DataConfig())


@pytest.fixture(scope='module')
def address(place: Place, shades_dir) -> str:
  return place.put_folder(shades_dir / 'shades', 'data/shades') + '/1.2.0'


@pytest.mark.parametrize('split', ['train', 'test', 'train[3:7]'])
def test_data_in_a_bucket_is_the_data_on_a_disk(address, shades_dir, split):
  there, here = opened(f'tfds:{address}', split), opened(f'tfds:{shades_dir}/shades/1.2.0', split)
  assert there.class_names == here.class_names and len(there) == len(here)
  assert [(r.image, r.label, r.name) for r in there] == [(r.image, r.label, r.name) for r in here]
  np.testing.assert_array_equal(there.labels(), here.labels())


def test_names_are_found_in_a_data_directory_in_a_bucket(address, shades_dir, monkeypatch):
  here = [r.image for r in opened(f'tfds:{shades_dir}/shades/1.2.0')]
  monkeypatch.setenv('TFDS_DATA_DIR', 'gs://bucket/data')
  for name in ('shades', 'shades:1.2.0'):
    assert [r.image for r in opened(f'tfds:{name}')] == here
  with pytest.raises(UserError, match=r'no prepared tfds:shades:9\.9\.9 in gs://bucket/data'):
    opened('tfds:shades:9.9.9')


def test_faults_change_no_record(address, shades_dir, place: Place):
  there, here = opened(f'tfds:{address}'), opened(f'tfds:{shades_dir}/shades/1.2.0')
  for number, fault in enumerate([503, 429, 'cut']):
    place.proxy.faults.append(fault)
    assert there[number].image == here[number].image
  assert not place.proxy.faults


def test_a_replaced_shard_has_its_own_labels(address, shades_dir, place: Place):
  before = opened(f'tfds:{address}')._fingerprint()
  (shard,) = (shades_dir / 'shades/1.2.0').glob('*train*00000-of-*')
  place.put(f'data/shades/1.2.0/{shard.name}', shard.read_bytes())
  assert opened(f'tfds:{address}')._fingerprint() != before


@pytest.mark.parametrize(
  'spec,message',
  [
    ('tfds:gs://bucket/data/shades', 'did you mean tfds:gs://bucket/data/shades/1.2.0'),
    ('tfds:gs://bucket/none', 'gs://bucket/none is no directory prepared by TFDS'),
    ('tfds:ftp://bucket/none', 'one of gs:// or s3://'),
  ],
)
def test_missing_data_is_one_sentence(address, spec, message):
  with pytest.raises(UserError, match=message):
    opened(spec)
