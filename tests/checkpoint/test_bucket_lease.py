"""One run at a time in a bucket's workdir, on emulated buckets."""

import json
import os
import socket
import threading
import time

import pytest
from bucket_emulators import Place, places

from vit_jax.checkpoint import bucket_lease
from vit_jax.checkpoint.bucket_lease import BucketLease
from vit_jax.foundation.errors import UserError


@pytest.fixture(scope='module', params=['gs', 's3'])
def place(request):
  with places(request.param, own=True) as found:
    yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  """A holder counts as dead after a second and a half."""
  monkeypatch.setattr(bucket_lease, '_BEAT', 0.1)
  monkeypatch.setattr(bucket_lease, '_LIMIT', 1.5)


class Ended(Exception):
  """What takes the place of the end of the process."""


def die(lease: BucketLease) -> None:
  """Ends a holder as SIGKILL does: it writes no more, and does not release what it has."""
  lease._over.set()
  lease._thread.join()


@pytest.mark.slow
def test_second_run_is_refused_with_host_and_pid_and_may_start_when_the_first_ends(place: Place):
  workdir = f'{place.scheme}://bucket/refused'
  with BucketLease(workdir):
    with pytest.raises(UserError) as error, BucketLease(workdir):
      pass
    assert f'{workdir} is in use by process {os.getpid()} on {socket.gethostname()} since' in str(error.value)
    assert json.loads(place.get('refused/lease.json'))['pid'] == os.getpid()
  assert place.names('refused') == []
  with BucketLease(workdir):
    pass


def test_run_takes_over_from_one_that_was_killed(place: Place):
  workdir = f'{place.scheme}://bucket/killed'
  dead = BucketLease(workdir).__enter__()
  die(dead)
  begin = time.monotonic()
  with BucketLease(workdir) as lease:
    assert time.monotonic() - begin >= 1.5
    assert lease._owner['token'].encode() in place.get('killed/lease.json')
    dead.__exit__()  # its process comes back to life and ends
    assert lease._owner['token'].encode() in place.get('killed/lease.json')


def test_holder_that_was_taken_over_ends_before_it_writes(place: Place, monkeypatch):
  workdir = f'{place.scheme}://bucket/frozen'
  frozen = BucketLease(workdir).__enter__()
  die(frozen)
  frozen._over.clear()
  sentences = []

  def end(sentence: str) -> None:
    sentences.append(sentence)
    raise Ended

  with BucketLease(workdir):
    monkeypatch.setattr(bucket_lease, 'end_to_restart', end)
    with pytest.raises(Ended):
      frozen.renew()
  assert 'was taken over by process' in sentences[0]


def test_lost_answer_does_not_lose_the_lease(place: Place, monkeypatch):
  """The write was done, its answer was lost, and the attempt after it is refused: the object is our own."""
  workdir = f'{place.scheme}://bucket/lost'
  monkeypatch.setattr(bucket_lease, '_BEAT', 1000)
  with BucketLease(workdir) as lease:
    real, lost = lease._bucket.write_if, []

    def write_if(address: str, content: bytes, version: str | None) -> str | None:
      written = real(address, content, version)
      if lost:
        return written
      lost.append(written)
      return None

    monkeypatch.setattr(lease._bucket, 'write_if', write_if)
    lease.renew()
    lease.renew()
    assert lost and lease._version != lost[0]


def test_lease_is_renewed_again_after_the_bucket_refused_it(place: Place, monkeypatch, caplog):
  """As while credentials are replaced: the thread that renews it goes on."""
  monkeypatch.setattr(bucket_lease, '_BEAT', 0.01)
  with BucketLease(f'{place.scheme}://bucket/refused') as lease:
    real, refusals, renewed = lease._write, [], threading.Event()

    def write(version: str | None) -> bool:
      if len(refusals) < 3:
        refusals.append(version)
        raise UserError('the bucket refuses it')
      renewed.set()
      return real(version)

    monkeypatch.setattr(lease, '_write', write)
    assert renewed.wait(60)
  assert caplog.text.count('the bucket refuses it') == 3


def test_lease_is_written_again_where_somebody_removed_it(place: Place):
  workdir = f'{place.scheme}://bucket/removed'
  with BucketLease(workdir) as lease:
    lease._bucket.remove([f'{workdir}/lease.json'])
    lease.renew()
    assert lease._owner['token'].encode() in place.get('removed/lease.json')


def test_bucket_that_is_not_there_is_named(place: Place):
  with (
    pytest.raises(UserError, match=f'There is no bucket {place.scheme}://none; make it first'),
    BucketLease(f'{place.scheme}://none/run'),
  ):
    pass
