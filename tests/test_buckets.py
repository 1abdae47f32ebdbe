"""Reads of objects from emulated buckets of Google and Amazon, over a connection with faults."""

import pytest
from bucket_emulators import Place, forget_earlier_emulators, places

from vit_jax.foundation import buckets
from vit_jax.foundation.buckets import Bucket, Patience
from vit_jax.foundation.errors import UserError

CONTENT = bytes(range(256)) * 1000
PATIENCE = Patience(timeout=60, pause=0)


@pytest.fixture(scope='module', params=['gs', 's3'])
def place(request):
  with places(request.param) as found:
    yield found


@pytest.fixture
def bucket(place: Place) -> Bucket:
  place.proxy.faults.clear()
  return Bucket(f'{place.scheme}://bucket', PATIENCE)


@pytest.mark.slow
def test_a_public_object_is_read_without_credentials(place: Place, bucket: Bucket):
  address = place.put('a/b.bin', CONTENT)
  assert bucket.entry(address).size == len(CONTENT)
  assert bucket.read(address, 1000, 1500) == CONTENT[1000:1500]


@pytest.mark.parametrize('end', [b'\r', b'\n', b'\r\n', b'\n\r'])
def test_an_object_is_whole_whatever_its_last_bytes_are(place: Place, bucket: Bucket, end: bytes):
  content = b'\x80\r\n' + end
  entry = bucket.entry(place.put('data/of_bytes', content))
  assert entry is not None and entry.size == len(content)
  assert bucket.read(entry.address, 0, entry.size) == content


def test_a_listing_has_the_objects_and_folders_directly_below(place: Place, bucket: Bucket):
  for name in ('list/x.json', 'list/y.json', 'list/deeper/z.json'):
    place.put(name, CONTENT)
  entries, folders = bucket.listing(f'{place.scheme}://bucket/list')
  assert [entry.address.rpartition('/')[2] for entry in entries] == ['x.json', 'y.json']
  assert folders == [f'{place.scheme}://bucket/list/deeper']


def test_a_folder_that_a_console_made_is_no_object(place: Place, bucket: Bucket):
  for name in ('made/', 'made/deeper/', 'made/deeper/x.json'):
    place.put(name, CONTENT if name.endswith('x.json') else b'')
  address = f'{place.scheme}://bucket/made'
  entries, folders = bucket.listing(address)
  assert entries == [] and f'{address}/deeper' in folders
  assert [entry.address for entry in bucket.below(address)] == [f'{address}/deeper/x.json']


def test_the_version_changes_with_the_content(place: Place, bucket: Bucket):
  before = bucket.entry(place.put('changing', CONTENT))
  after = bucket.entry(place.put('changing', CONTENT[::-1]))
  assert before.size == after.size and before.version != after.version


def test_missing_objects_are_named(place: Place, bucket: Bucket):
  address = f'{place.scheme}://bucket/none'
  assert bucket.entry(address) is None
  assert bucket.listing(address) == ([], [])
  with pytest.raises(UserError, match=f'There is no {address}'):
    bucket.read(address, 0, 1)


@pytest.mark.parametrize('fault', [503, 429, 'cut', 'stall'])
def test_reads_survive_faults(place: Place, fault: int | str):
  address = place.put('faulty', CONTENT)
  bucket = Bucket(address, Patience(timeout=1.5, pause=0, attempts=20) if fault == 'stall' else PATIENCE)
  place.proxy.faults[:] = [fault]
  assert bucket.read(address, 0, len(CONTENT)) == CONTENT
  assert not place.proxy.faults


def test_parts_of_a_large_object_are_its_bytes(place: Place, bucket: Bucket, monkeypatch):
  monkeypatch.setattr(buckets, '_PART', 10_000)
  entry = bucket.entry(place.put('large', CONTENT))
  place.proxy.ranges.clear()
  assert b''.join(bucket.parts(entry, 123)) == CONTENT[123:]
  assert len(place.proxy.ranges) == 26


def test_refused_objects_name_the_ways_to_give_credentials():
  with places('s3') as place:
    address = place.put('private', CONTENT, public=False)
    with pytest.raises(UserError, match='AWS_ACCESS_KEY_ID'):
      Bucket(address, PATIENCE).read(address, 0, 1)


def test_a_missing_package_is_named(monkeypatch):
  monkeypatch.setitem(__import__('sys').modules, 's3fs', None)
  with pytest.raises(UserError, match=r"pip install 'vit_jax\[s3\]'"):
    Bucket('s3://bucket/x')


def test_an_unreachable_bucket_is_a_sentence(place: Place, monkeypatch):
  for name in ('STORAGE_EMULATOR_HOST', 'AWS_ENDPOINT_URL'):
    monkeypatch.setenv(name, 'http://127.0.0.1:1')
  forget_earlier_emulators()
  address = f'{place.scheme}://bucket/x'
  with pytest.raises(UserError, match=r'cannot be reached .*check the network'):
    Bucket(address, Patience(timeout=2, attempts=1)).entry(address)
  forget_earlier_emulators()
