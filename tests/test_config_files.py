"""A config is found by its name or its path, and one that fails is named with its line."""

import pytest
from commands import CONFIG, assert_said
from fork_server import run

from vit_jax import config as c
from vit_jax.options import config_files


@pytest.mark.parametrize(
  ('value', 'variant'),
  [('vit_l16:jft', 'L/16'), ('ablations/position:rotary', 'custom'), ('position:rotary', 'custom')],
)
def test_shipped_config_is_found_by_name(value, variant, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert c.from_config_dict(config_files.load(value)).model.variant == variant


def test_file_here_goes_before_the_shipped_config_of_that_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'quickstart').write_text(CONFIG)
  assert c.from_config_dict(config_files.load('quickstart')).model.width == 16
  (tmp_path / 'quickstart').unlink()
  (tmp_path / 'quickstart').mkdir()  # a run's folder, say
  assert c.from_config_dict(config_files.load('quickstart')).model.width == 64


@pytest.mark.parametrize(
  ('value', 'texts'),
  [
    ('quikstart', ["no config 'quikstart'", 'did you mean --config=quickstart?']),
    ('configs/quickstart.py', ['no config file configs/quickstart.py', '--config=quickstart.']),
    ('xyz', ["no config 'xyz'", 'quickstart', 'ablations/position']),
    ('quickstart:big', ['The config quickstart takes no argument', "':big'"]),
  ],
)
def test_unknown_config_is_answered_with_the_nearest_one(value, texts, tmp_path):
  assert_said(run('vit_jax', 'train', f'--config={value}', cwd=tmp_path), *texts)


@pytest.mark.parametrize(
  ('content', 'texts'),
  [
    ('import no_such_module\n', ['Line 1', 'ModuleNotFoundError', 'no_such_module']),
    ('def get_config():\n  return (\n', ['Line 2', 'SyntaxError']),
    ('CONFIG = {}\n', ['no function get_config()']),
    ('def get_config():\n  return Config()\n', ['Line 2', 'NameError']),
    ('def get_config(size):\n  return size\n', ['needs an argument', '--config=mine.py:size']),
    ('def get_config():\n  pass\n', ['get_config()', 'NoneType', 'to_config_dict']),
  ],
)
def test_config_file_that_fails_is_named_with_its_line(content, texts, tmp_path):
  (tmp_path / 'mine.py').write_text(content)
  result = run('vit_jax', 'train', '--config=mine.py', '--config.seed=1', cwd=tmp_path)
  assert_said(result, 'mine.py', *texts)
  assert len(result.stderr.splitlines()) == 1
