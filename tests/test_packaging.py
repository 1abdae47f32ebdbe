"""What pyproject.toml says of the package: its dependencies, and what ships with it."""

import ast
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import released_files
import tiny
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image
from processes import HUNG

import vit_jax
from vit_jax.data.preprocess import Preprocess
from vit_jax.models.base import Architecture
from vit_jax.pretrained.base import Pretrained

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
EXTRAS = PROJECT['optional-dependencies']


def distributions(requirements: list[str]) -> set[str]:
  return {canonicalize_name(Requirement(text).name) for text in requirements}


def imported(*folders: str) -> dict[str, set[str]]:
  """Maps each third-party distribution that files of these folders import to the names of those files."""
  providers = importlib.metadata.packages_distributions()
  found: dict[str, set[str]] = {}
  for folder in folders:
    files = list((ROOT / folder).rglob('*.py'))
    scripts = {script.stem for script in (ROOT / 'benchmarks').rglob('*.py')}  # which their tests import
    own = {'vit_jax', 'configs', *scripts, *(part for file in files for part in file.with_suffix('').parts)}
    for file in files:
      for module in imported_modules(file) - own:
        for distribution in providers.get(module, [module]):
          found.setdefault(canonicalize_name(distribution), set()).add(str(file.relative_to(ROOT)))
  return found


def imported_modules(file: pathlib.Path) -> set[str]:
  """Top-level names of what a file imports, without the standard library."""
  modules = set()
  for node in ast.walk(ast.parse(file.read_text())):
    if isinstance(node, ast.Import):
      modules |= {alias.name.split('.')[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
      modules.add(node.module.split('.')[0])
  return modules - set(sys.stdlib_module_names) - {'_typeshed'}  # of type checkers


USED_EXTRAS = ('beam', 'export', 'huggingface', 'gcs', 's3', 'search', 'serve')
RUN_TIME = [*PROJECT['dependencies'], *(text for extra in USED_EXTRAS for text in EXTRAS[extra])]
# Used where they are installed: timm by a test, the others by config.tracker.
OPTIONAL = {'timm', 'mlflow', *distributions(EXTRAS['mlflow'] + EXTRAS['wandb'])}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('folder', 'requirements'),
  [
    ('vit_jax', RUN_TIME),
    ('configs', RUN_TIME),
    ('launch', PROJECT['dependencies'] + EXTRAS['gke']),
    ('tests', RUN_TIME + EXTRAS['gke'] + EXTRAS['peers'] + EXTRAS['test']),
  ],
)
def test_every_import_is_declared(folder, requirements):
  declared = distributions(requirements) | OPTIONAL
  assert not {name: files for name, files in imported(folder).items() if name not in declared}


def test_every_dependency_is_imported():
  assert not distributions(RUN_TIME) - imported('vit_jax').keys()


def test_version_is_that_of_the_installed_package():
  assert vit_jax.__version__ == importlib.metadata.version('vit_jax')


def test_version_stands_in_the_changelog_and_the_citation():
  version = PROJECT['version']
  assert re.findall(r'^version: (.*)$', (ROOT / 'CITATION.cff').read_text(), re.MULTILINE) == [version]
  assert re.findall(r'^## (\S+)', (ROOT / 'CHANGELOG.md').read_text(), re.MULTILINE)[0] == version


def test_recipes_ship_inside_the_package():
  """`vit_jax/configs` is a link to `configs`, which a wheel holds as a folder."""
  inside = pathlib.Path(vit_jax.__file__).parent / 'configs'
  assert {file.name for file in inside.iterdir()} == {file.name for file in (ROOT / 'configs').iterdir()}


def short_list() -> list[str]:
  """What docs/installing.md installs where models are only loaded and run."""
  lines = (ROOT / 'docs/installing.md').read_text().splitlines()
  (line,) = (line for line in lines if line.startswith('pip install ') and 'flax' in line)
  return shlex.split(line)[2:]


def needed(requirements: list[str]) -> set[str]:
  """The distributions that these requirements bring here, with all that those depend on."""
  found, waiting = set(), [Requirement(text) for text in requirements]
  while waiting:
    one = waiting.pop()
    key = (canonicalize_name(one.name), *sorted(one.extras))
    if key not in found:
      found.add(key)
      below = map(Requirement, importlib.metadata.requires(one.name) or ())
      extras = one.extras or {''}
      waiting += [
        each
        for each in below
        if not each.marker or any(each.marker.evaluate({'extra': extra}) for extra in extras)
      ]
  return {name for name, *_ in found}


# Hides the modules that the first argument names from what follows.
HIDING = """
import importlib.machinery, sys
class Finder(importlib.machinery.PathFinder):
  @classmethod
  def find_spec(cls, name, path=None, target=None):
    return None if name.partition('.')[0] in hidden else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
hidden = sys.argv.pop(1).split(',')
"""


@pytest.mark.slow
def test_models_are_loaded_and_run_with_the_packages_of_the_short_list(tmp_path):
  listed = {canonicalize_name(Requirement(text).name) for text in short_list()}
  assert listed <= distributions(PROJECT['dependencies']) | {'flax', 'jax'}
  there, providers = needed(short_list()), importlib.metadata.packages_distributions()
  own = {'vit_jax', '_distutils_hack'}
  hidden = [
    module
    for module, names in providers.items()
    if not {*map(canonicalize_name, names)} & there and module not in own
  ]
  assert {'cv2', 'matplotlib', 'pyarrow', 'sklearn', 'tensorflow_datasets', 'tensorboardX'} <= {*hidden}

  architecture = Architecture(tiny.options(), (16, 16), 3, 4)
  params = tiny.build(image_size=(16, 16), num_classes=4)[1]
  preprocess = Preprocess((16, 16), antialias=True, method='bicubic', shorter=16)
  released_files.write_folder(Pretrained(architecture, params, preprocess), tmp_path / 'model', 'timm')
  Image.effect_noise((30, 20), 50).save(tmp_path / 'photo.png')

  def run(code: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, '-c', HIDING + code, ','.join(hidden), *arguments]
    return subprocess.run(
      command, cwd=tmp_path, capture_output=True, text=True, timeout=HUNG, env=environment
    )

  environment = dict(os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS='cpu')
  script = 'from vit_jax import cli; sys.argv[0] = "vit_jax"; cli.main()'
  result = run(script, 'predict', '--checkpoint=model', '--format=json', 'photo.png')
  assert result.returncode == 0, result.stderr
  (image,) = json.loads(result.stdout)
  model = vit_jax.load(tmp_path / 'model')
  photo = model.preprocess([Image.open(tmp_path / 'photo.png')])
  expected = np.sort(np.asarray(model.probabilities(model(photo)))[0])[::-1]
  np.testing.assert_allclose([item['probability'] for item in image['predictions']], expected, rtol=1e-4)

  result = run(script, 'visualize', '--checkpoint=model', '--out=seen', 'photo.png')
  sentence = 'The package matplotlib is not installed, and this needs it: pip install matplotlib.\n'
  assert (result.returncode, result.stderr) == (2, sentence)
  result = run('from vit_jax.data.opencv import opencv; opencv()')
  assert result.stderr.endswith('needs it: pip install opencv-python-headless.\n')
