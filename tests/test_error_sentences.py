"""Errors of the machine in one sentence."""

import contextlib
import os
import pty
import re
import shlex
import subprocess
import sys

import commands
import pytest
from absl import flags
from stalled_mount import Stalling

from vit_jax.foundation import error_sentences


@pytest.mark.parametrize(
  ('names', 'said'),
  [
    (['config', 'workdir'], 'take a larger config.accumulation'),
    (['batch_size', 'image_size'], r'make the batch or the images smaller \(--batch_size, --image_size\)\.'),
    ([], 'make the batch or the images smaller.$'),
  ],
  ids=['train', 'transfer', 'none'],
)
def test_too_little_memory_names_the_flags_that_the_command_has(monkeypatch, names, said):
  values = flags.FlagValues()
  for name in names:
    flags.DEFINE_string(name, None, '', flag_values=values)
  monkeypatch.setattr(flags, 'FLAGS', values)
  text = error_sentences.out_of_memory()
  assert re.search(said, text), text
  assert ('config.' in text) == ('config' in names)


# Which file is one too many is chance: one of the run's, or the device that C++ draws from.
TOO_MANY_FILES = (
  r'(/run\S*|/dev/urandom) cannot be read or written \(Too many open files\); '
  r'.*ulimit -n: .* goes on from there\.$'
)


def test_a_random_device_that_cannot_be_opened_is_too_many_open_files():
  error = RuntimeError('random_device::random_device(const std::string&): device not available')
  text = error_sentences.of(error) or ''
  assert text.startswith('/dev/urandom cannot be read or written (Too many open files); raise the number'), (
    text
  )


@pytest.mark.nightly(but='-v|-f')
@pytest.mark.slow
@pytest.mark.parametrize(
  ('limit', 'said'),
  [
    *((f'-n {files}', TOO_MANY_FILES) for files in (20, 24)),
    ('-f 4', r'/run/\S+[a-z] cannot be .*\(File too large\); .*ulimit -f: what was saved before is whole'),
    ('-v 1800000', r'more memory than the 1\.7 GiB that it may use \(ulimit -v\); .* is safe\.$'),
  ],
)
def test_limits_of_a_process_are_said_in_one_sentence(tmp_path, limit, said):
  (tmp_path / 'config.py').write_text(commands.CONFIG)
  command = shlex.join([sys.executable, '-m', 'vit_jax.main', '--config=config.py', '--workdir=run'])
  environment = os.environ | {'PYTHONPATH': str(commands.ROOT), 'XLA_FLAGS': commands.xla_flags(devices=1)}
  result = subprocess.run(
    ['sh', '-c', f'ulimit {limit}; exec {command}'],
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
  )
  commands.assert_said(result)
  assert re.search(said, result.stderr.splitlines()[-1]), result.stderr


REFUSALS = {
  'ENOSPC': 'The disk is full: {} cannot be written; free some space',
  'EIO': '{} cannot be read or written (Input/output error)',
  'EROFS': '{} cannot be read or written (Read-only file system)',
}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('operation', 'where', 'named', 'refusal'),
  [
    ('CREATE', 'config.json', 'config.json', 'EROFS'),
    ('WRITE', 'metrics.jsonl', 'metrics.jsonl', 'ENOSPC'),
    ('MKDIR', 'checkpoints/2', 'checkpoints', 'EIO'),
  ],
)
def test_a_disk_that_fails_in_the_middle_of_a_run_is_named_in_one_sentence(
  tmp_path, operation, where, named, refusal
):
  (tmp_path / 'disk').mkdir()
  try:
    mount = Stalling(tmp_path / 'disk', tmp_path / 'mount', operation, where, refusal)
  except OSError as error:
    pytest.skip(f'a file system of the tests cannot be mounted here: {error}')
  try:
    result = commands.run(tmp_path, workdir='mount/run')
  finally:
    mount.close()
  said = REFUSALS[refusal].format(f'{tmp_path}/mount/run/{named}')
  commands.assert_said(
    result, said, ': what was saved before is whole, and the same command goes on from there.'
  )
  assert len(result.stderr.splitlines()) == 1, result.stderr


# Steps up, colours the terminal's text, clears it, and renames its window.
HOSTILE = '\x1b[A\x1b[31mno\x1b[2J\x1b]0;mine\x07\x9b1m.png'


def test_control_characters_in_names_are_shown_and_not_obeyed_by_a_terminal(tmp_path):
  terminal, its_end = pty.openpty()
  environment = os.environ | {'PYTHONPATH': str(commands.ROOT)}
  command = [sys.executable, '-m', 'vit_jax.predict', '--checkpoint=model.npz', HOSTILE]
  process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=its_end, stderr=its_end)
  os.close(its_end)
  shown = b''
  with contextlib.suppress(OSError):  # that its end was closed
    while piece := os.read(terminal, 4096):
      shown += piece
  os.close(terminal)
  assert process.wait() == 2, shown
  text = shown.decode()
  assert ascii(HOSTILE)[1:-1] in text and text.strip().isprintable()
