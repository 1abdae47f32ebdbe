"""Objects in a bucket that somebody else named or wrote: one sentence, and nothing outside of the folder they go to."""

import json
import pathlib

import pytest
from bucket_emulators import Place, places

from vit_jax.checkpoint import lease
from vit_jax.checkpoint.bucket_steps import BucketSteps
from vit_jax.foundation import buckets
from vit_jax.foundation.bucket_paths import local_place
from vit_jax.foundation.buckets import Bucket
from vit_jax.foundation.errors import UserError
from vit_jax.training.workdir import BucketWorkdir

ADDRESS = 'gs://bucket/run'
OUTSIDE = ['..', 'a/../../x', 'a//x', './x', 'a/.', 'a\0b', 'a/' + 'n' * 250, 'é' * 130]


@pytest.fixture(scope='module')
def place():
  with places('gs') as found:
    yield found


@pytest.mark.parametrize('name', OUTSIDE)
def test_object_that_no_folder_can_hold_is_a_sentence(tmp_path, name):
  with pytest.raises(UserError, match='is no name for a file') as error:
    local_place(tmp_path, f'{ADDRESS}/{name}', ADDRESS)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('name', ['/x', 'x\ny', '~', '$HOME', '%2e%2e/x', 'a\\..\\x', 'n' * 240])
def test_object_of_any_other_name_lies_in_the_folder(tmp_path, name):
  path = local_place(tmp_path, f'{ADDRESS}/{name}', ADDRESS)
  path.parent.mkdir(exist_ok=True)
  path.touch()
  assert tmp_path in path.resolve().parents


def test_object_that_is_a_folder_too_is_a_sentence(place: Place, tmp_path):
  for name in ('report', 'report/x', 'report/x/y'):
    place.put(f'both/{name}', b'{}')
  with pytest.raises(UserError, match='one name is of an object and of a folder'):
    BucketWorkdir('gs://bucket/both', tmp_path / 'local').__enter__()


def test_object_larger_than_the_disk_is_refused_before_it_is_copied(place: Place, tmp_path):
  place.put('large/x', b'{}')
  (entry,) = Bucket('gs://bucket/large').below('gs://bucket/large')
  large = buckets.Entry(entry.address, 2**60, entry.version)
  with pytest.raises(OSError, match='No space left'):
    Bucket('gs://bucket/large').download(large, tmp_path / 'x')


def test_only_the_one_name_of_a_step_is_a_step(place: Place):
  """Two names of step 7 would be two steps, of which one is kept and the other removed."""
  for name in ('7', '007', '٧', '-1', '1e3', '+5', ' 4', '9' * 30, '9' * 900, '0'):
    place.put(f'steps/checkpoints/{name}/commit_success.txt', b'')
  assert BucketSteps('gs://bucket/steps/checkpoints').committed() == [0, 7]


@pytest.mark.parametrize(
  'content',
  [
    *(b'', b'[]', b'{', b'{}', b'\xff', b'[' * 9999, b'{"pid": ' + b'9' * 5000 + b'}'),
    *(json.dumps({'pid': 1, 'since': '', 'host': host}).encode() for host in ('a\nb', '\ud800', 'x' * 9999)),
  ],
)
def test_lease_of_anything_is_held_by_another_process(content):
  assert lease.refusal(pathlib.Path('run'), content).startswith('run is in use by another process; ')
