"""Errors of the machine in one sentence."""

import re

import pytest
from absl import flags

from vit_jax import error_sentences


@pytest.mark.parametrize(
  ('names', 'said'),
  [
    (['config', 'workdir'], 'take a larger config.accumulation'),
    (['batch_size', 'image_size'], r'make the batch or the images smaller \(--batch_size, --image_size\)\.'),
    (['batch_size'], r'smaller \(--batch_size\)\.'),
    ([], 'make the batch or the images smaller.$'),
  ],
  ids=['train', 'transfer', 'predict', 'none'],
)
def test_too_little_memory_names_the_flags_that_the_command_has(monkeypatch, names, said):
  values = flags.FlagValues()
  for name in names:
    flags.DEFINE_string(name, None, '', flag_values=values)
  monkeypatch.setattr(flags, 'FLAGS', values)
  text = error_sentences.out_of_memory()
  assert re.search(said, text), text
  assert ('config.' in text) == ('config' in names)
