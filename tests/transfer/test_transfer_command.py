"""`python -m vit_jax.transfer` in a process of its own: killed and started again, up to its table."""

import json
import pathlib
import signal

import fork_server
import pytest
import run_steps
from PIL import Image
from processes import HUNG, wait_until


def start(tmp_path: pathlib.Path, *flags: str) -> fork_server.Command:
  environment = {'TFDS_DATA_DIR': str(tmp_path / 'tfds')}
  return fork_server.start('vit_jax.transfer', *flags, cwd=tmp_path, environment=environment)


def ended(process: fork_server.Command, code: int = 0) -> tuple[str, str]:
  """What a process that ends with the code says on stdout and stderr."""
  said, errors = process.communicate(timeout=HUNG)
  assert process.wait() == code, errors
  return said, errors


@pytest.mark.nightly
def test_transfer_goes_on_after_a_kill_and_ends_in_its_table(tmp_path, checkpoint):
  flags = ['--checkpoint=./pretrained', '--workdir=out', '--suite=digits,cifar100,fewshot:digits']
  flags += ['--seeds=2', '--rates=0.01,0.1', '--batch_size=16', '--image_size=8', '--steps=12']
  flags += ['--option=checkpoint.every=3 steps', '--option=data.threads=1']
  out = tmp_path / 'out'
  process = start(tmp_path, *flags)
  saved = out / 'digits/checkpoint/seed_0/checkpoints/3'
  wait_until(saved.exists, lambda: process.poll() is None, process.communicate)
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert not (out / 'digits/checkpoint/seed_0/result.json').exists() and not (out / 'table.md').exists()

  said, _ = ended(start(tmp_path, *flags))
  assert '2 runs, of which 2 were done before' in said  # the sweep
  for text in ('seed_0: goes on', 'seed_1: begins', 'seed_1: done, test/accuracy '):
    assert f'digits/checkpoint/{text}' in said
  assert 'Resuming from step' in (out / 'digits/checkpoint/seed_0/log.txt').read_text()
  assert not (out / 'digits/checkpoint/rate_0.1/checkpoints').exists()  # only its score was wanted

  values = json.loads((out / 'table.json').read_text())
  digits, cifar100, ridge, *_ = values['lines']
  finals = [run_steps.logged(out / f'digits/checkpoint/seed_{seed}')[-1] for seed in (0, 1)]
  assert digits['ours']['each'] == [final['test/accuracy'] for final in finals]
  sweep = digits['sweep'][0]
  assert digits['rate'][0] == float(max(sweep, key=sweep.get)) and len(set(sweep.values())) == 2
  assert 'tfds build cifar100' in cifar100['missing']
  assert cifar100['quoted_percent']['H/14 JFT'] == [94.55, 0.04, None]
  assert ridge['name'] == 'digits 5-shot ridge' and ridge['ours']['mean'] > 0.1
  assert values['compute']['runs'] == 5 and values['compute']['flops'] > 0
  text = (out / 'table.md').read_text()
  assert '94.55 ± 0.04' in text and 'quoted, not measured here' in text and '## Missing' in text
  with Image.open(out / 'table.png') as picture:
    assert picture.width > 1000

  # Other options on the same workdir are refused.
  _, errors = ended(start(tmp_path, *flags, '--option=model.dropout=0.1'), code=2)
  assert 'model.dropout (0.0 there, 0.1 here)' in errors


@pytest.mark.slow
@pytest.mark.parametrize(
  ('flag', 'said'),
  [
    ('--rates=0.1,0.1', '--rates=0.1,0.1 is no list of different numbers'),
    ('--option=model.dropout', 'is no option with a value'),
  ],
)
def test_wrong_flag_is_one_sentence_and_exit_code_2(tmp_path, flag, said):
  _, errors = ended(start(tmp_path, '--checkpoint=x', '--workdir=y', flag), code=2)
  assert said in errors.splitlines()[-1] and 'Traceback' not in errors
