"""A few dozen cases of the fuzzer, of every reader: `fuzz_readers.py` runs ten thousand (docs/security.md)."""

import fuzz_readers
import pytest


def test_damaged_files_of_every_kind_are_read_right_or_refused_in_one_sentence(tmp_path):
  found = fuzz_readers.fuzz(60, 2, [], tmp_path / 'log.jsonl')
  assert len(found) == 60 and len({line['reader'] for line in found}) == 20
  assert not [line for line in found if line['outcome'] in fuzz_readers.BAD]
  # What has checksums is never read as something else.
  checked = {'npz', 'safetensors', 'array_record', 'cache of a listing'}
  assert not [line for line in found if line['reader'] in checked and line['outcome'] == 'other values']
  # The log goes on where it stopped, with the same cases.
  assert fuzz_readers.fuzz(60, 2, [], tmp_path / 'log.jsonl') == found


@pytest.mark.slow
def test_damaged_images_are_decoded_or_named_and_nothing_is_on_stderr():
  found = fuzz_readers.fuzz(100, 7, ['images'])
  assert len(found) == 100 and not [line for line in found if line['outcome'] in fuzz_readers.BAD]
