"""Flags of benchmarks that would measure something else, or nothing."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
  ('script', 'flag', 'said'),
  [
    ('mesh_equality', '--models=efficentnet', "there is no 'efficentnet'; choose from vit, efficientnet"),
    ('mesh_equality', '--models=vit,', "there is no ''; choose from vit, efficientnet"),
    ('mesh_equality', '--optimizers=sgd,foo', "there is no 'foo'; choose from sgd, adam"),
    ('peers_tpu', '--contenders=our', "there is no 'our'; choose from ours, big_vision_fsdp"),
  ],
)
def test_unknown_name_is_refused_with_those_that_there_are(script, flag, said, monkeypatch, capsys):
  module = importlib.import_module(script)
  monkeypatch.setattr(sys, 'argv', [script, flag])
  with pytest.raises(SystemExit) as end:
    module.main()
  assert end.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize('batches', [3, 50])
def test_memory_is_printed_at_equal_intervals_of_any_number_of_batches(batches, monkeypatch, capsys):
  module = importlib.import_module('bucket_input')
  monkeypatch.setattr(sys, 'argv', ['bucket_input', '--source=digits', f'--batches={batches}'])
  module.main()
  first, *lines = capsys.readouterr().out.splitlines()
  assert 'before the first batch' in first
  every = max(batches // 20, 1)
  assert [int(line.split()[0]) for line in lines] == list(range(every, batches + 1, every))
