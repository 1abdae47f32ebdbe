"""What pyproject.toml says of the package: its dependencies, and what ships with it."""

import ast
import importlib.metadata
import pathlib
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vit_jax

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


USED_EXTRAS = ('beam', 'huggingface', 'gcs', 's3', 'serve')
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


def test_recipes_ship_inside_the_package():
  """`vit_jax/configs` is a link to `configs`, which a wheel holds as a folder."""
  inside = pathlib.Path(vit_jax.__file__).parent / 'configs'
  assert {file.name for file in inside.iterdir()} == {file.name for file in (ROOT / 'configs').iterdir()}
