"""Whatever happens to the files of the newest step: its own bits come back, or those of the one before."""

import gc
import logging
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from trees import abstract, assert_same

from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.manager import Manager
from vit_jax.foundation.errors import UserError


def _items(step: int) -> dict:
  bits = np.random.default_rng(step)
  return {
    'params': {
      'kernel': bits.standard_normal((64, 16), np.float32),
      'bias': np.asarray(bits.standard_normal(16), jnp.bfloat16),
    },
    'opt_state': {'count': np.int32(step), 'mu': bits.standard_normal((64, 16), np.float32)},
  }


ABSTRACT = abstract(_items(1))


@pytest.fixture(scope='module', autouse=True)
def frozen():
  """What is in memory before these tests is not searched for garbage after each damage: it is slow."""
  gc.freeze()
  yield
  gc.unfreeze()


@pytest.fixture(scope='module')
def sound(tmp_path_factory) -> pathlib.Path:
  """A run with the steps 1 and 2."""
  directory = tmp_path_factory.mktemp('sound') / 'checkpoints'
  with Manager(directory, CheckpointConfig()) as manager:
    for step in (1, 2):
      manager.save(step, jax.device_put(_items(step)), {'step': step}, {'val/loss': 1.0})
  return directory


@pytest.fixture
def run(sound, tmp_path) -> pathlib.Path:
  """A copy of it to damage."""
  return pathlib.Path(shutil.copytree(sound, tmp_path / 'checkpoints'))


def _restored(run: pathlib.Path, caplog) -> tuple[int, list[str]]:
  """(step restored, warnings); the values are those of that step, to the bit."""
  caplog.clear()
  with (
    caplog.at_level(logging.WARNING, 'vit_jax'),
    Manager(run, CheckpointConfig(best='val/loss')) as manager,
  ):
    step, items, meta = manager.restore_newest(ABSTRACT)
  assert meta == {'step': step}
  assert_same(items, _items(step))
  return step, [record.getMessage() for record in caplog.records if record.name.startswith('vit_jax')]


def _flipped(content: bytes, position: int, mask: int) -> bytes:
  return content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]


def _damages(content: bytes):
  """What can happen to a file: (name, new content or None)."""
  yield 'deleted', None
  yield 'half', content[: len(content) // 2]
  yield 'zeros', bytes(len(content))
  last = len(content) - 1
  for position in sorted({0, last // 2, last}):
    yield f'byte {position} flipped', _flipped(content, position, 0x10)


@pytest.mark.slow
def test_damage_to_any_file_is_noticed_or_harmless(run, caplog):
  files = sorted(path for path in (run / '2').rglob('*') if path.is_file())
  assert len(files) > 15
  backup = run.parent / 'backup'
  shutil.copytree(run, backup)
  outcomes, reasons = {}, ''
  for file in files:
    content = file.read_bytes()
    for name, new in _damages(content):
      if new is None:
        file.unlink()
      else:
        file.write_bytes(new)
      step, warnings = _restored(run, caplog)
      outcomes[f'{file.relative_to(run)} {name}'] = step
      if step == 2:
        assert warnings == []
        file.write_bytes(content)
      else:
        assert step == 1 and len(warnings) == 1, (file, name)
        assert str(run / '2') in warnings[0] and '\n' not in warnings[0]
        reasons += warnings[0]
        assert not (run / '2').exists()  # it lies in damaged/ now
        shutil.copytree(backup / '2', run / '2')
  assert len(list((run.parent / 'damaged').iterdir())) == list(outcomes.values()).count(1)
  # The three ways in which it is found out.
  assert 'checksum of' in reasons and 'digest of meta' in reasons and 'Error' in reasons
  for part in ('meta/metadata deleted', 'meta/metadata half', 'params/manifest.ocdbt deleted'):
    assert outcomes[f'2/{part}'] == 1


@pytest.mark.parametrize(
  'damage',
  {
    'empty directory': lambda run: (shutil.rmtree(run / '2'), (run / '2').mkdir()),
    'a file in its place': lambda run: (shutil.rmtree(run / '2'), (run / '2').write_text('')),
    'no params': lambda run: shutil.rmtree(run / '2' / 'params'),
    'no meta': lambda run: shutil.rmtree(run / '2' / 'meta'),
    'params of step 1': lambda run: (
      shutil.rmtree(run / '2' / 'params'),
      shutil.copytree(run / '1' / 'params', run / '2' / 'params'),
    ),
    'meta of step 1': lambda run: shutil.copy(
      run / '1' / 'meta' / 'metadata', run / '2' / 'meta' / 'metadata'
    ),
    'meta is a list': lambda run: (run / '2' / 'meta' / 'metadata').write_text('[]'),
    'meta is not text': lambda run: (run / '2' / 'meta' / 'metadata').write_bytes(b'\xff\xfe\x00'),
    'meta without digest': lambda run: (run / '2' / 'meta' / 'metadata').write_text('{"format": 1}'),
  }.items(),
  ids=lambda item: item[0].replace(' ', '-'),
)
def test_larger_damage_falls_back_to_the_step_before(run, caplog, damage):
  damage[1](run)
  step, warnings = _restored(run, caplog)
  if damage[0] == 'a file in its place':  # that is no step
    assert (step, warnings) == (1, [])
  else:
    assert step == 1 and len(warnings) == 1
    assert (run.parent / 'damaged' / '2-0').exists()
    # The run goes on from there, and saves that step again.
    with Manager(run, CheckpointConfig()) as manager:
      assert manager.save(2, jax.device_put(_items(2)), {'step': 2})
    assert _restored(run, caplog) == (2, [])


def test_damage_to_an_item_that_is_not_asked_for_does_not_matter(run, caplog):
  """To evaluate, the parameters suffice."""
  shutil.rmtree(run / '2' / 'opt_state')
  with Manager(run, CheckpointConfig(), read_only=True) as manager:
    assert manager.restore_newest({'params': ABSTRACT['params']})[0] == 2
    assert manager.restore_newest(ABSTRACT)[0] == 1


def test_nothing_sound_is_an_error_and_nothing_is_moved(run, caplog):
  for step in (1, 2):
    (run / str(step) / 'meta' / 'metadata').write_text('')
  before = sorted(run.parent.rglob('*'))
  for _ in range(2):  # nor does the next start begin from scratch
    with (
      Manager(run, CheckpointConfig()) as manager,
      pytest.raises(UserError, match='None of the 2 check') as error,
    ):
      manager.restore_newest(ABSTRACT)
    assert str(run) in str(error.value) and '\n' not in str(error.value)
    assert sorted(run.parent.rglob('*')) == before


def test_no_memory_is_not_damage(run, monkeypatch):
  def restore(*_, **__):
    raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes')

  monkeypatch.setattr(ocp.StandardCheckpointHandler, 'restore', restore)
  with Manager(run, CheckpointConfig()) as manager:
    with pytest.raises(RuntimeError, match='RESOURCE_EXHAUSTED'):
      manager.restore_newest(ABSTRACT)
    assert manager.all_steps() == [1, 2]
