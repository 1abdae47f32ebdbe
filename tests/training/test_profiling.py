"""Profiles of steps, read back with JAX's own reader."""

import os
import pathlib
import signal

import jax
import processes
import pytest

from vit_jax.config import Config, from_config_dict
from vit_jax.foundation.errors import UserError
from vit_jax.models.vit_config import ViTConfig
from vit_jax.training import loop, preprocessing, profiling
from vit_jax.training.run import Dataset, Run

# A process of its own, since the profiler starts those of all plugins that a process has loaded, libtpu's too.
SCRIPT = """
  import os, pathlib, signal, sys
  import jax, jax.numpy as jnp
  from vit_jax.training.profiling import Profiler

  train_step = jax.jit(lambda x: jnp.sin(x) @ x)

  def run(name, steps, count, ask_at=None):
    folder, x = pathlib.Path(sys.argv[1]) / name, jnp.ones((8, 8))
    profiler = Profiler(steps, folder, print)
    with profiler:
      if ask_at == 0:  # while a run still compiles
        os.kill(os.getpid(), signal.SIGUSR1)
      for step in range(1, count + 1):
        if step == ask_at:
          os.kill(os.getpid(), signal.SIGUSR1)
        with profiler.step(step):
          x = train_step(x)
        profiler.finish(step, x)

  before = signal.getsignal(signal.SIGUSR1)
  run('named', 'steps 3-5', 8)
  run('asked', None, 20, ask_at=4)
  run('early', None, 20, ask_at=0)
  run('short', 'steps 2-9', 4)
  run('none', None, 3)
  assert signal.getsignal(signal.SIGUSR1) == before
"""


@pytest.fixture(scope='module')
def traces(tmp_path_factory) -> tuple[pathlib.Path, list[str]]:
  """A folder with the traces of SCRIPT, and its lines of output."""
  folder = tmp_path_factory.mktemp('traces')
  (output,) = processes.run(SCRIPT, arguments=(folder,))
  return folder, output.splitlines()


def traced_steps(folder: pathlib.Path) -> list[int]:
  """The numbers of the steps in the only trace of a folder."""
  (path,) = folder.glob('plugins/profile/*/*.xplane.pb')
  planes = jax.profiler.ProfileData.from_file(str(path)).planes
  events = [event for plane in planes for line in plane.lines for event in line.events]
  return sorted(dict(event.stats)['step_num'] for event in events if event.name == 'train')


@pytest.mark.slow
def test_a_profile_holds_the_steps_that_were_named_as_far_as_they_came(traces):
  folder, lines = traces
  assert traced_steps(folder / 'named') == [3, 4, 5]
  assert traced_steps(folder / 'short') == [2, 3, 4] and not (folder / 'none').exists()
  assert any(line.startswith(f'Profile of steps 3 to 5: {folder}/named ') for line in lines)


@pytest.mark.slow
def test_sigusr1_profiles_the_next_ten_steps(traces):
  folder, lines = traces
  assert traced_steps(folder / 'asked') == list(range(4, 14))
  assert traced_steps(folder / 'early') == list(range(1, 11))  # asked before the first step
  assert any(line.startswith('Profile of steps 4 to 13: ') for line in lines)


@pytest.mark.slow
def test_training_listens_before_anything_is_opened_and_no_longer_once_it_failed(tmp_path, monkeypatch):
  def refuse(*_):
    os.kill(os.getpid(), signal.SIGUSR1)  # would end the process
    raise UserError('The data is not there.')

  before = signal.getsignal(signal.SIGUSR1)
  monkeypatch.setattr(preprocessing, 'resolved', refuse)
  with pytest.raises(UserError, match='The data is not there'):
    loop.train(Config(total='1 steps'), tmp_path)
  assert signal.getsignal(signal.SIGUSR1) == before


def test_steps_are_read_and_other_text_is_refused_by_the_name_of_the_option():
  texts = ('steps 10-20', 'step 7', ' steps 1 - 2')
  assert [profiling.parse(text) for text in texts] == [(10, 20), (7, 7), (1, 2)]
  for text in ('10-20', 'steps 0-3', 'steps 9-3'):
    with pytest.raises(UserError, match=r'config\.profile .*steps 10-20'):
      from_config_dict({'profile': text})


@pytest.mark.slow
def test_operations_of_the_compiled_step_name_the_part_of_the_model():
  model = ViTConfig(variant='custom', patch=4, width=8, mlp_dim=8, depth=1, heads=2)
  run = Run(Config(total='9 steps', batch_size=8, ema=0.9, model=model), Dataset(32, num_classes=4))
  program = run.program
  text = program.step.lower(program.state, program.batch).as_text(debug_info=True)
  for part in ('inputs', 'embedding', 'attention', 'mlp', 'head', 'optimizer', 'ema'):
    assert f'/{part}/' in text or f'({part})/' in text, part
