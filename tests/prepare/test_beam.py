"""Shards written by Apache Beam."""

import json
import sys

import pytest
from prepared_sets import files, interrupted_after

from vit_jax.foundation.errors import UserError
from vit_jax.prepare import run
from vit_jax.prepare.images import Shrinking


@pytest.mark.slow
def test_beam_writes_the_same_bytes(pets_tar, tmp_path, in_this_process):
  pytest.importorskip('apache_beam')
  shrinking = Shrinking(shortest_side=120)
  run.prepare(str(pets_tar), str(tmp_path / 'local/set'), run.Options(shrinking, shard_mib=1))
  count = len(in_this_process)
  options = run.Options(shrinking, shard_mib=1, runner='direct')
  run.prepare(str(pets_tar), str(tmp_path / 'beam/set'), options)
  assert len(in_this_process) == count > 3  # Beam wrote them itself
  assert files(tmp_path / 'beam/set') == files(tmp_path / 'local/set')


def test_beam_goes_on_where_another_stopped(pets_tar, tmp_path, monkeypatch, in_this_process):
  pytest.importorskip('apache_beam')
  interrupted_after(2, monkeypatch)
  options = run.Options(Shrinking(), shard_mib=1)
  with pytest.raises(KeyboardInterrupt):
    run.prepare(str(pets_tar), str(tmp_path / 'set'), options)
  first = sorted((tmp_path / 'set').glob('*.array_record-*'))
  times = [path.stat().st_mtime_ns for path in first]
  assert len(first) == 2
  run.prepare(str(pets_tar), str(tmp_path / 'set'), run.Options(Shrinking(), shard_mib=1, runner='direct'))
  assert [path.stat().st_mtime_ns for path in first] == times
  assert json.loads((tmp_path / 'set/dataset_info.json').read_text())['name'] == 'set'


def test_unknown_runners_are_refused(pets_tar, tmp_path):
  pytest.importorskip('apache_beam')
  with pytest.raises(UserError, match=r'Apache Beam refuses --runner=nosuch \(Unexpected pipeline runner'):
    run.prepare(str(pets_tar), str(tmp_path / 'set'), run.Options(Shrinking(), runner='nosuch'))


def test_missing_beam_is_said_with_the_remedy(pets_tar, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'apache_beam', None)
  with pytest.raises(UserError, match=r"--runner=direct needs Apache Beam .*pip install -e '\.\[beam\]'"):
    run.prepare(str(pets_tar), str(tmp_path / 'set'), run.Options(Shrinking(), runner='direct'))
