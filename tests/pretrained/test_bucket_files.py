"""Checkpoints in emulated buckets: an object, a Hugging Face folder and a run, copied once and then kept."""

import pathlib

import numpy as np
import pytest
from bucket_emulators import Place, places
from released_files import logits, path, write_run

import vit_jax
from vit_jax.foundation import buckets
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import download, formats

IMAGES = np.linspace(-1, 1, 32 * 32 * 3, dtype=np.float32).reshape(1, 32, 32, 3)


@pytest.fixture(scope='module')
def place():
  with places('gs') as found:
    yield found


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, place: Place) -> pathlib.Path:
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  place.proxy.faults.clear()
  place.proxy.ranges.clear()
  return tmp_path / 'cache'


@pytest.mark.slow
def test_npz_gives_the_logits_of_the_local_file_and_is_copied_once(golden, place: Place):
  file = path(golden, 'a_vit_token')
  address = place.put('models/a.npz', file.read_bytes())
  expected = logits(file, IMAGES)
  np.testing.assert_array_equal(logits(address, IMAGES), expected)
  requests = len(place.proxy.ranges)
  np.testing.assert_array_equal(logits(address, IMAGES), expected)
  assert requests and len(place.proxy.ranges) == requests


def test_changed_object_is_copied_again(golden, place: Place):
  address = place.put('models/changing.npz', path(golden, 'a_vit_token').read_bytes())
  first = download.local_file(address)
  place.put('models/changing.npz', path(golden, 'b_vit_gap').read_bytes())
  second = download.local_file(address)
  assert first != second and second.read_bytes() == path(golden, 'b_vit_gap').read_bytes()


def test_broken_copy_goes_on_where_it_ended(golden, place: Place, monkeypatch):
  content = path(golden, 'a_vit_token').read_bytes()
  monkeypatch.setattr(buckets, '_PART', len(content) // 4 + 1)
  monkeypatch.setattr(buckets, '_PARALLEL', 1)
  address = place.put('models/broken.npz', content)
  real, reads = buckets.Bucket.read, []

  def read(bucket, address, first, last):
    if len(reads) == 2:
      raise UserError('the network is gone')
    reads.append(first)
    return real(bucket, address, first, last)

  with monkeypatch.context() as patch:
    patch.setattr(buckets.Bucket, 'read', read)
    with pytest.raises(UserError, match='the network is gone'):
      download.local_file(address)
  place.proxy.ranges.clear()
  assert download.local_file(address).read_bytes() == content
  assert len(place.proxy.ranges) == 2


@pytest.mark.slow
def test_folder_of_safetensors_is_read(golden, place: Place, tmp_path):
  pretrained = formats.read(path(golden, 'a_vit_token'))
  writer, _ = formats.written_by('hf', pretrained)
  writer.write(pretrained, tmp_path / 'vit')
  address = place.put_folder(tmp_path / 'vit', 'models/vit')
  np.testing.assert_array_equal(logits(address, IMAGES), logits(tmp_path / 'vit', IMAGES))


@pytest.mark.slow
def test_run_is_read_with_no_more_than_its_newest_step(golden, place: Place, tmp_path, cache):
  write_run(formats.read(path(golden, 'a_vit_token')), tmp_path / 'run')
  (step,) = (folder for folder in (tmp_path / 'run/checkpoints').iterdir() if folder.name.isdigit())
  step.rename(step.with_name('11'))
  place.put('runs/a/checkpoints/9/params/older', b'not to be copied')
  place.put('runs/a/events.out', b'not to be copied')
  address = place.put_folder(tmp_path / 'run', 'runs/a')
  np.testing.assert_array_equal(logits(address + '/', IMAGES), logits(tmp_path / 'run', IMAGES))
  names = {file.name for file in cache.rglob('*')}
  assert 'params' in names and not names & {'older', 'events.out'}


@pytest.mark.parametrize(
  ('name', 'said'),
  [('none.npz', 'There is no gs://bucket/none'), ('none/', 'There is no'), ('photos', 'has no model')],
)
def test_missing_checkpoint_is_one_sentence(place: Place, name, said):
  place.put('photos/a.jpg', b'x')
  with pytest.raises(UserError, match=said):
    vit_jax.load(f'{place.scheme}://bucket/{name}')


def test_object_whose_name_is_no_path_of_a_folder_is_refused(place: Place):
  place.put('runs/slashes/checkpoints/1/params/a//b', b'x')
  place.put('runs/slashes/checkpoints/1/commit_success.txt', b'x')
  with pytest.raises(UserError, match='is no name for a file of a model; remove it'):
    vit_jax.load(f'{place.scheme}://bucket/runs/slashes')
