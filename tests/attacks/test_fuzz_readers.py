"""A few dozen cases of the fuzzer, of every reader: `fuzz_readers.py` runs ten thousand (docs/security.md)."""

import sys

import fuzz_readers


def test_damaged_files_of_every_kind_are_read_right_or_refused_in_one_sentence(tmp_path):
  found = fuzz_readers.fuzz(57, 2, [], tmp_path / 'log.jsonl')
  assert len(found) == 57 and len({line['reader'] for line in found}) == 19
  assert not [line for line in found if line['outcome'] in fuzz_readers.BAD]
  # What has checksums is never read as something else.
  checked = {'npz', 'safetensors', 'array_record', 'cache of a listing'}
  assert not [line for line in found if line['reader'] in checked and line['outcome'] == 'other values']
  # The log goes on where it stopped, with the same cases.
  assert fuzz_readers.fuzz(57, 2, [], tmp_path / 'log.jsonl') == found


def test_code_that_a_damaged_file_would_run_is_noticed(tmp_path, monkeypatch):
  """Otherwise the counts of the fuzzer would show nothing."""
  import fuzz_targets  # imports everything that reads
  import mutations

  monkeypatch.setattr(sys, 'path', [str(tmp_path / 'modules'), *sys.path])
  (tmp_path / 'modules').mkdir()
  (tmp_path / 'modules' / f'{mutations.PAYLOAD}.py').write_text('open(__file__ + ".ran", "w").close()\n')
  bad = fuzz_targets.Target(
    lambda folder: None, ('names.txt',), lambda folder: __import__(mutations.PAYLOAD) and None
  )
  monkeypatch.setitem(fuzz_targets.TARGETS, 'bad', bad)
  folder = tmp_path / str(list(fuzz_targets.TARGETS).index('bad'))
  folder.mkdir()
  (folder / 'names.txt').write_text('cat\n')
  assert fuzz_targets.case(tmp_path, 'bad', '', '0/0')['outcome'] == 'code ran'
