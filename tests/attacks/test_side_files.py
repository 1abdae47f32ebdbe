"""Damaged, removed and replaced files of a run's own: no resume is blocked, no line is lost without a word."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest

from vit_jax import config as c
from vit_jax.checkpoint.manager import Manager
from vit_jax.data.bad_images import BadImages
from vit_jax.foundation import json_lines
from vit_jax.foundation.errors import BadImage, UserError
from vit_jax.training import metrics, results, resume

DAMAGES = {
  'one bad byte': b'{"step": 2, "train/l\xffss": 1.0}\n',
  'a step that is no number': b'{"step": "2"}\n',
  'a value that is no number': b'{"step": 2, "train/loss": []}\n',
  'no object': b'[2]\n',
  'deep': b'[' * 100_000 + b'\n',
  'a long number': b'{"step": ' + b'9' * 5000 + b'}\n',
  'zeros at the end': bytes(300),
}
FIRST, LAST = b'{"step": 1, "train/loss": 0.5}\n', b'{"step": 3, "train/loss": 0.25}\n'
SOUND = [{'step': 1, 'train/loss': 0.5}, {'step': 3, 'train/loss': 0.25}]


def steps_in(folder) -> list[int]:
  """The steps of a file that has to be JSON, line by line, without NaN."""

  def refuse(name):
    raise AssertionError(name)

  text = (folder / 'metrics.jsonl').read_text()
  return [json.loads(line, parse_constant=refuse)['step'] for line in text.splitlines()]


@pytest.mark.parametrize('damage', DAMAGES.values(), ids=DAMAGES)
def test_resume_keeps_the_sound_lines_of_a_damaged_log_and_the_file_as_it_was(tmp_path, damage, caplog):
  content = FIRST + LAST + damage if damage == bytes(300) else FIRST + damage + LAST
  (tmp_path / 'metrics.jsonl').write_bytes(content)
  assert metrics.read_metrics(tmp_path) == SOUND  # as `compare` reads it: nothing is moved
  assert 'has a damaged line' in caplog.text and (tmp_path / 'metrics.jsonl').read_bytes() == content
  caplog.clear()
  log = metrics.MetricsLog(tmp_path, 3)
  log.write(4, {'train/loss': 0.125})
  log.close()
  assert 'metrics.jsonl has a damaged line' in caplog.text and 'metrics.jsonl.damaged' in caplog.text
  assert (tmp_path / 'metrics.jsonl.damaged').read_bytes() == content
  assert steps_in(tmp_path) == [1, 3, 4]


def test_pipe_in_place_of_a_side_file_is_a_sentence(tmp_path):
  os.mkfifo(tmp_path / 'metrics.jsonl')
  os.mkfifo(tmp_path / 'config.json')
  for read in (metrics.read_metrics, lambda folder: metrics.MetricsLog(folder, 0), resume.read_config):
    with pytest.raises(UserError, match='it is not a regular file'):
      read(tmp_path)


def test_second_damage_does_not_overwrite_what_was_moved_aside_first(tmp_path):
  for _ in range(3):
    (tmp_path / 'metrics.jsonl').write_bytes(b'?\n')
    metrics.MetricsLog(tmp_path, 0).close()
  names = sorted(path.name for path in tmp_path.glob('*.damaged*'))
  assert names == ['metrics.jsonl.damaged', 'metrics.jsonl.damaged-2', 'metrics.jsonl.damaged-3']


def test_line_that_a_kill_cut_short_is_dropped_and_one_without_its_newline_is_kept(tmp_path, caplog):
  for kept, found in ((LAST[:-1], SOUND), (LAST[:-2], SOUND[:1]), (LAST[:1], SOUND[:1])):
    (tmp_path / 'metrics.jsonl').write_bytes(FIRST + kept)
    assert metrics.read_metrics(tmp_path) == found and not caplog.text


def test_numbers_that_are_not_finite_are_null_in_the_log_and_nan_for_its_readers(tmp_path):
  old = b'{"step": 1, "test/loss": NaN, "train/loss": Infinity}\n'  # as earlier versions wrote them
  (tmp_path / 'metrics.jsonl').write_bytes(old)
  log = metrics.MetricsLog(tmp_path, 1)
  log.write(2, {'test/loss': math.nan, 'train/loss': math.inf})
  log.close()
  assert steps_in(tmp_path) == [1, 2]
  for line in metrics.read_metrics(tmp_path):
    assert math.isnan(line['test/loss']) and math.isnan(line['train/loss'])


@pytest.mark.parametrize('harm', ['removed', 'cut', 'replaced', 'folder removed'])
def test_log_that_is_harmed_under_a_running_run_ends_with_all_its_lines(tmp_path, harm, caplog):
  folder = tmp_path / 'run'
  folder.mkdir()
  path = folder / 'metrics.jsonl'
  log = metrics.MetricsLog(folder, 0)
  for step in range(1, 38):
    log.write(step, {'train/loss': 1 / step})
  assert not caplog.text
  if harm == 'removed':
    path.unlink()
  elif harm == 'folder removed':
    folder.rename(tmp_path / 'elsewhere')
  elif harm == 'replaced':
    (tmp_path / 'other').write_text('{"step": 1}\n')
    os.replace(tmp_path / 'other', path)
  else:
    os.truncate(path, 100)
  for step in range(38, 148):
    log.write(step, {'train/loss': 1 / step})
  log.sync()
  log.close()
  assert steps_in(folder) == list(range(1, 148))
  assert caplog.text.count('all its lines are written again') == 1
  if harm == 'replaced':
    assert (folder / 'metrics.jsonl.damaged').read_text() == '{"step": 1}\n'


@pytest.mark.parametrize(('there', 'lost'), [((), '0 and 300'), ((50, 100), '100 and 300'), ((250,), '')])
def test_lines_that_were_removed_between_two_starts_are_missed(tmp_path, there, lost, caplog):
  text = ''.join(json_lines.text({'step': step, 'train/loss': 0.5}) for step in there)
  (tmp_path / 'metrics.jsonl').write_text(text)
  metrics.MetricsLog(tmp_path, 300, 50 if lost else 51).close()
  assert (f'lacks the lines between the steps {lost}' in caplog.text) == bool(lost)


def test_lines_that_were_further_apart_before_are_not_missed(tmp_path, caplog):
  (tmp_path / 'metrics.jsonl').write_text(json_lines.text({'step': 50, 'train/loss': 0.5}))
  metrics.MetricsLog(tmp_path, 95, 10).close()
  assert not caplog.text


def test_damaged_list_of_bad_images_keeps_its_sound_lines(tmp_path, caplog):
  path = tmp_path / 'bad_images.jsonl'
  sound = {'step': 2, 'name': 'a', 'error': 'a is bad.'}
  unsound = [b'{"step": 1}\n', b'{}\n', b'[]\n', bytes(9) + b'\n', b'\xff\n']
  path.write_bytes(b''.join([*unsound, json_lines.text(sound).encode()]))
  images = BadImages()
  images.keep_in(path, 5)
  images.add(6, BadImage('b', 'b is bad.'))
  assert images.report(9) == {'data/bad_images': 2}
  assert [json.loads(line)['name'] for line in path.read_text().splitlines()] == ['a', 'b']
  assert 'has 5 damaged lines' in caplog.text and path.with_name('bad_images.jsonl.damaged').exists()
  path.unlink()
  images.report(9)
  assert len(path.read_text().splitlines()) == 2


CONFIGS = [b'', b'[]', b'{}', b'\xff', b'{"model": 3}', b'[' * 9999]


def claim(config: c.Config, folder, *, begun: bool, takeover: bool = False) -> str:
  with resume.claim(config, folder, begun=begun, takeover=takeover) as said:
    return said


@pytest.fixture(scope='module')
def config():
  return c.Config(total='3 steps', evaluators={'test': c.ClassificationEvaluatorConfig()})


@pytest.fixture(scope='module')
def saved(config, tmp_path_factory):
  """A folder with a checkpoint of a run."""
  folder = tmp_path_factory.mktemp('run')
  with Manager(folder / 'checkpoints', config.checkpoint) as manager:
    manager.save(3, {'params': {'x': np.zeros(2)}}, {'config': c.as_json(config)})
  return folder


@pytest.mark.parametrize('content', [None, *CONFIGS])
def test_missing_or_damaged_config_is_repaired_from_the_checkpoint(saved, config, content, caplog):
  for path in [*saved.glob('config.json*'), *saved.glob('takeover.json')]:
    path.unlink()
  path, state = saved / 'config.json', 'missing' if content is None else 'damaged'
  if content is not None:
    path.write_bytes(content)
  assert resume.read_config(saved) == config and f'config.json is {state}' in caplog.text
  other = dataclasses.replace(config, seed=7)
  with pytest.raises(UserError, match='another config: seed'):  # the run keeps its protection
    claim(other, saved, begun=True)
  assert (path.read_bytes() if path.exists() else None) == content
  said = claim(config, saved, begun=True)
  assert f'config.json is {state}' in said and '\n' not in said
  assert resume.read_config(saved) == config
  assert [each.read_bytes() for each in saved.glob('*.damaged')] == ([] if content is None else [content])
  path.unlink()
  assert 'Taking over' in claim(other, saved, begun=True, takeover=True)


def test_missing_config_beside_checkpoints_that_cannot_be_read_is_a_sentence(tmp_path, config):
  with pytest.raises(UserError, match=r'config.json is missing and no checkpoint .* another --workdir'):
    claim(config, tmp_path, begun=True)
  with pytest.raises(UserError, match='There is no run in'):
    resume.read_config(tmp_path)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('content', CONFIGS)
def test_damaged_config_without_a_checkpoint_is_a_sentence_or_a_new_beginning(tmp_path, config, content):
  (tmp_path / 'config.json').write_bytes(content)
  for call in (lambda: resume.read_config(tmp_path), lambda: claim(config, tmp_path, begun=True)):
    with pytest.raises(UserError, match=r'config.json is damaged \(.*\); remove it'):
      call()
  assert 'no checkpoint yet' in claim(config, tmp_path, begun=False)
  assert resume.read_config(tmp_path) == config


@pytest.mark.parametrize('content', [b'[]', b'\xff', b'{"metrics": 3}'])
def test_damaged_result_of_a_transfer_is_moved_aside(tmp_path, config, content, caplog):
  claim(config, tmp_path, begun=False)
  (tmp_path / 'result.json').write_bytes(content)
  assert results.read(config, tmp_path) is None
  assert 'result.json is damaged' in caplog.text and (tmp_path / 'result.json.damaged').exists()
