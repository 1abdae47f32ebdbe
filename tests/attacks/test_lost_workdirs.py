"""A workdir that is moved, removed or given to another run; a config or data that is edited between two starts."""

import dataclasses
import os
import pathlib
import re
import shutil

import bucket_data
import numpy as np
import pytest
import tiny
from PIL import Image

from vit_jax import config as c
from vit_jax.checkpoint.lease import FILE_NAME, Lease
from vit_jax.checkpoint.manager import Manager
from vit_jax.data.sources import open_source
from vit_jax.evaluation import classification
from vit_jax.foundation.errors import UserError
from vit_jax.training import evaluate_checkpoint, loop

pytestmark = pytest.mark.usefixtures('kept_programs')

CONFIG = c.Config(
  total='6 steps',
  batch_size=8,
  log_every='1 steps',
  model=tiny.options(),
  data=c.DataConfig(source='digits', image_size=(8, 8), crop='resize'),
  checkpoint=c.CheckpointConfig(every='2 steps'),
  tensorboard=c.TensorBoardConfig(pictures=False),
)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
  return {str(path): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.mark.parametrize('harm', ['moved', 'removed', 'replaced', 'lease removed', 'lease replaced'])
def test_lease_is_lost_with_its_folder_or_its_file(tmp_path, harm):
  folder = tmp_path / 'run'
  with pytest.raises(UserError, match='was moved, removed or replaced'), Lease(folder) as lease:
    lease.check()
    if harm.startswith('lease'):
      (folder / FILE_NAME).unlink()
    elif harm == 'moved':
      folder.rename(tmp_path / 'aside')
    else:
      shutil.rmtree(folder)
    if harm.endswith('replaced'):
      folder.mkdir(exist_ok=True)
      (folder / FILE_NAME).write_text('{}')
    raise ZeroDivisionError  # whatever comes of it is not the reason


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize('harm', ['moved', 'removed'])
def test_run_whose_workdir_another_run_has_ends_without_a_trace_in_it(tmp_path, harm, monkeypatch):
  folder, theirs, managers = tmp_path / 'run', {}, []

  def manager(*arguments, **options) -> Manager:
    managers.append(Manager(*arguments, **options))
    return managers[-1]

  monkeypatch.setattr(loop, 'Manager', manager)

  def attack(step, state, values):
    if step == 3:
      managers[0].wait()
      if harm == 'moved':
        folder.rename(tmp_path / 'aside')
      else:
        shutil.rmtree(folder)
      with Lease(folder):  # another run, as far as it has come
        for name in ('config.json', 'metrics.jsonl', 'checkpoints/2/meta'):
          (folder / name).parent.mkdir(parents=True, exist_ok=True)
          (folder / name).write_text('theirs')
      theirs.update(contents(folder))

  with pytest.raises(UserError, match='was moved, removed or replaced') as error:
    loop.train(CONFIG, folder, on_step=attack)
  assert '\n' not in str(error.value)
  assert contents(folder) == {name: text for name, text in theirs.items() if text or name != 'running'}
  if harm == 'moved':
    assert Manager(tmp_path / 'aside/checkpoints', CONFIG.checkpoint, read_only=True).all_steps() == [2]


@pytest.mark.nightly(but='train')
@pytest.mark.slow
@pytest.mark.parametrize('mode', ['train', 'eval'])
def test_report_is_not_written_into_a_workdir_that_was_lost_meanwhile(tmp_path, mode, monkeypatch):
  folder, theirs, collect = tmp_path / 'run', {}, classification.collect
  evaluators = {'test': c.ClassificationEvaluatorConfig()}
  config = dataclasses.replace(CONFIG, total='2 steps', evaluators=evaluators)
  if mode == 'eval':
    loop.train(config, folder)

  def attacked(step, models, batches):
    def attack():
      for number, batch in enumerate(batches):
        if number == 0:
          folder.rename(tmp_path / 'aside')
          (folder / 'report').mkdir(parents=True)
          (folder / 'report/test.json').write_text('theirs')
          theirs.update(contents(folder))
        yield batch

    return collect(step, models, attack())

  monkeypatch.setattr(classification, 'collect', attacked)
  with pytest.raises(UserError, match='was moved, removed or replaced'):
    (loop.train if mode == 'train' else evaluate_checkpoint.evaluate_newest)(config, folder)
  assert contents(folder) == theirs


def test_step_that_is_being_saved_when_the_workdir_is_lost_gets_no_name(tmp_path):
  folder, asked = tmp_path / 'checkpoints', []

  def lost_meanwhile():
    asked.append(folder)
    if len(asked) > 1:
      raise UserError('It was moved.')

  with (
    pytest.raises(UserError, match='It was moved'),
    Manager(folder, c.CheckpointConfig(), before_commit=lost_meanwhile) as manager,
  ):
    manager.save(1, {'params': {'x': np.zeros(2)}}, {})
  assert Manager(folder, c.CheckpointConfig(), read_only=True).all_steps() == []


def killed(config: c.Config, folder: pathlib.Path, **options) -> None:
  """Trains to step 3; step 2 is saved. Started again, it is killed before it saves."""

  def kill(step, state, values):
    if step == 3:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    loop.train(config, folder, on_step=kill, **options)


@pytest.mark.slow
def test_lines_of_a_step_are_on_the_disk_before_its_checkpoint_is_begun(tmp_path, monkeypatch):
  fsync, save, synced, seen = os.fsync, Manager.save, {}, {}

  def noted(descriptor):
    fsync(descriptor)
    status = os.fstat(descriptor)
    synced[status.st_ino] = status.st_size

  def saved(manager, step, *arguments, **options):
    status = (tmp_path / 'metrics.jsonl').stat()
    seen[step] = synced.get(status.st_ino), status.st_size
    return save(manager, step, *arguments, **options)

  monkeypatch.setattr(os, 'fsync', noted)
  monkeypatch.setattr(Manager, 'save', saved)
  loop.train(CONFIG, tmp_path)
  assert list(seen) == [2, 4, 6] and all(disk == size > 0 for disk, size in seen.values()), seen


@pytest.mark.slow
def test_edited_config_does_not_turn_a_run_into_another_one(tmp_path, capsys):
  killed(CONFIG, tmp_path)
  path = tmp_path / 'config.json'
  sound = path.read_bytes()
  path.write_bytes(sound.replace(b'"seed": 0', b'"seed": 7'))
  with pytest.raises(UserError, match=r'whose config.json was edited, holds .* seed \(0 there, 7 here\)'):
    loop.train(dataclasses.replace(CONFIG, seed=7), tmp_path)
  state = loop.train(CONFIG, tmp_path)
  assert int(state.step) == 6 and 'config.json was edited (seed)' in capsys.readouterr().out
  assert path.read_bytes() == sound


@pytest.mark.nightly
@pytest.mark.slow
def test_takeover_that_was_killed_before_its_first_save_goes_on_as_it_was_taken(tmp_path):
  killed(CONFIG, tmp_path)
  faster = dataclasses.replace(CONFIG, schedule=c.ScheduleConfig(learning_rate=0.5))

  killed(faster, tmp_path, takeover=True)
  with pytest.raises(UserError, match='holds a run with another config'):
    loop.train(CONFIG, tmp_path)
  assert int(loop.train(faster, tmp_path).step) == 6


@pytest.mark.nightly
def test_training_data_that_was_changed_in_place_is_said(tmp_path, caplog):
  images = bucket_data.write_images(tmp_path / 'images')
  sources = [f'folder:{images}', bucket_data.prepare(images, str(tmp_path / 'set/1.0.0'))]
  data = dataclasses.replace(CONFIG.data, mixture=tuple((source, 1.0) for source in sources))
  config = dataclasses.replace(CONFIG, data=data)
  opened = [open_source(source, 'train', data=data) for source in sources]
  versions, sums = [source.version() for source in opened], opened[1].sums()
  killed(config, tmp_path / 'run')
  assert versions == [open_source(source, 'train', data=data).version() for source in sources]
  listed = tmp_path / 'set/1.0.0/SHA256SUMS'
  lines = listed.read_text().splitlines(keepends=True)
  for split, same in (('test', True), ('train', False)):
    listed.write_text(''.join('0' * 64 + line[64:] if f'-{split}.' in line else line for line in lines))
    changed = open_source(sources[1], 'train', data=data)
    assert changed.version() == versions[1] and (changed.sums() == sums) == same
  Image.fromarray(np.zeros((12, 12, 3), np.uint8)).save(images / 'train/dark/3.png')
  others = bucket_data.write_images(tmp_path / 'others', seed=1)
  bucket_data.prepare(others, str(tmp_path / 'other_set/1.0.0'))
  (shard,) = (tmp_path / 'other_set/1.0.0').glob('*-train.array_record*')
  shutil.copy(shard, tmp_path / 'set/1.0.0' / shard.name.replace('other_set', 'set'))
  for source, version in zip(sources, versions, strict=True):
    assert open_source(source, 'train', data=data).version() != version
  assert 'training data were changed' not in caplog.text
  killed(config, tmp_path / 'run')
  assert re.search(
    'training data were changed.* SHA256SUMS [0-9a-f]{64} then, .* SHA256SUMS [0-9a-f]{64} now', caplog.text
  )
