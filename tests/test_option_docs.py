"""The options that `--help` lists, with their documentation, against the dataclasses as Python imports them."""

import subprocess
import sys

from commands import assert_said
from fork_server import ROOT, run

from vit_jax import cli, options
from vit_jax import config as c
from vit_jax.data.sources.base import SOURCES
from vit_jax.evaluation.base import EVALUATORS
from vit_jax.models.base import MODELS
from vit_jax.objectives.base import OBJECTIVES
from vit_jax.options import documentation

REGISTRIES = {'model': MODELS, 'objective': OBJECTIVES, 'evaluators.NAME': EVALUATORS}

# Of another indentation than ours, documented in both ways, one of them with a default of its module's own.
OUTSIDE = '''
import dataclasses
from vit_jax.config import Config, to_config_dict
from vit_jax.models.base import MODELS
from vit_jax.models.mixer import MixerConfig

@dataclasses.dataclass(frozen=True)
class BagConfig(MixerConfig):
    # Pixels along a side
    # of a patch.
    patch_side: int = 2
    bag_width: int = 4 * 8
    """The size
    of a token."""

    def describe(self):
        return 'a bag'

MODELS.register('bag', BagConfig)

def get_config():
    return to_config_dict(Config(model=BagConfig()))
'''

# Prints, for every command, what of the heavy libraries its help has imported.
HELPS = """
import os, runpy, sys
from vit_jax import cli
for module, _ in cli.COMMANDS.values():
  if os.fork() == 0:
    sys.argv = [module, '--help']
    try:
      runpy.run_module(module, run_name='__main__', alter_sys=True)
    finally:
      heavy = {'jax', 'flax', 'optax', 'tensorflow_datasets', 'matplotlib'} & set(sys.modules)
      print(module, 'has imported', sorted(heavy), file=sys.stderr, flush=True)
      os._exit(0)
  os.wait()
"""


def kinds():
  """(section, kind, its options with their defaults), of those that come with vit_jax."""
  for section, registry in REGISTRIES.items():
    for kind in registry.names():
      if registry[kind].__module__.startswith('vit_jax.'):  # other tests register their own
        yield section, kind, registry[kind]()


def test_names_of_a_registry_that_a_text_lacks_are_behind_it(monkeypatch):
  def text(name: str) -> str:
    return next(doc.text for doc in documentation.documented() if doc.name == name)

  assert 'Known' not in text('data.source')
  monkeypatch.setattr(SOURCES, '_entries', {**SOURCES._entries, 'mine': 'nowhere:MineSource'})
  assert text('data.source').endswith('wins over `split`. Known: digits, tfds, folder, vtab, mine.')


def test_every_option_has_a_text_and_the_default_that_python_gives_it():
  docs = {doc.name: doc for doc in documentation.documented()}
  assert {name: doc.default for name, doc in docs.items()} == {
    name: repr(value) for name, value in options.flatten(c.Config()).items() if name != 'evaluators'
  }
  for section, kind, own in kinds():
    found = {doc.name: doc for doc in documentation.documented(type(own), f'{section}.')}
    assert {name: doc.default for name, doc in found.items()} == {
      f'{section}.{name}': repr(value) for name, value in options.flatten(own).items()
    }, kind
    docs |= found
  assert len(docs) > 120
  assert [name for name, doc in docs.items() if not doc.text] == []


def test_help_has_the_options_of_every_kind_once():
  text = documentation.help_text()
  for section, kind, own in kinds():
    for name in options.as_dict(own):
      assert f'  --config.{section}.{name}=' in text or name == REGISTRIES[section].tag, (kind, name)
  assert (
    text.count('--config.model.tokens_mlp_dim=None\n') == text.count('--config.model.tokens_mlp_dim=') == 1
  )


def test_help_of_every_command_imports_no_heavy_library():
  result = subprocess.run(
    [sys.executable, '-c', HELPS], cwd=ROOT, env={'PYTHONPATH': str(ROOT)}, capture_output=True, text=True
  )
  expected = [f'{module} has imported []' for module, _ in cli.COMMANDS.values()]
  assert result.stderr.splitlines() == expected
  assert result.stdout.count('--config.model.tokens_mlp_dim=') == 3  # train, plan, contact_sheet


def test_options_of_an_outside_model_are_in_help_and_in_errors(tmp_path):
  (tmp_path / 'mine.py').write_text(OUTSIDE)
  text = run('vit_jax.main', '--config=mine.py', '--help', cwd=tmp_path).stdout
  _, _, bag = text.partition("With --config.model.name='bag' there are:\n")
  lines = [line.strip() for line in bag.splitlines()]
  for option, said in {
    'patch_side=2': 'Pixels along a side of a patch.',
    'bag_width=32': 'The size of a token.',
  }.items():
    assert lines[lines.index(f'--config.model.{option}') + 1] == said
  wrong = run('vit_jax.main', '--config=mine.py', '--config.model.patch_sied=4', cwd=tmp_path)
  assert_said(wrong, 'config.model.patch_sied', 'did you mean config.model.patch_side?')


def test_a_class_whose_source_cannot_be_read_has_options_without_a_text():
  scope = {'__name__': 'nowhere'}
  exec(OUTSIDE.replace('MODELS.register', '# '), scope)
  docs = {doc.name: doc for doc in documentation.documented(scope['BagConfig'])}
  assert docs.keys() == options.flatten(scope['BagConfig']()).keys()
  assert docs['dtype'].text and not docs['bag_width'].text
