"""The package's shape: no import circle, arrows that point one way, and contracts that nobody asks around."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

from vit_jax.evaluation.base import EVALUATORS
from vit_jax.models.base import MODELS
from vit_jax.objectives.base import OBJECTIVES

ROOT = pathlib.Path(__file__).parents[1]


def modules() -> dict[str, pathlib.Path]:
  """'vit_jax.models.vit' -> its file; a package is named by its folder."""
  found = {}
  for file in (ROOT / 'vit_jax').rglob('*.py'):
    parts = file.relative_to(ROOT).with_suffix('').parts
    if 'configs' not in parts:
      found['.'.join(parts[:-1] if parts[-1] == '__init__' else parts)] = file
  return found


MODULES = modules()
TREES = {name: ast.parse(file.read_text()) for name, file in MODULES.items()}


def nodes(tree: ast.AST, *, types: bool = True) -> Iterator[ast.AST]:
  """All nodes of a module; without `types` only those that run."""
  for node in ast.iter_child_nodes(tree):
    if types or not (isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING'):
      yield node
      yield from nodes(node, types=types)


def imports(name: str, *, types: bool = True) -> set[str]:
  """The modules of the package that a module imports, in functions too; without `types` not those for types alone."""
  found = set()
  for node in nodes(TREES[name], types=types):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and node.module:
      assert not node.level, f'{name} has a relative import'
      for alias in node.names:
        inner = f'{node.module}.{alias.name}'
        found.add(inner if inner in MODULES else node.module)
  return found & MODULES.keys()


def room(name: str) -> str:
  """'vit_jax.models.vit' -> 'models', 'vit_jax.main' -> 'main'."""
  return name.split('.')[1] if '.' in name else 'vit_jax'


def circle(graph: dict[str, set[str]]) -> list[str]:
  """The names along a circle of a graph; [] if there is none."""
  done: set[str] = set()

  def visit(name: str, path: list[str]) -> list[str]:
    if name in path:
      return [*path[path.index(name) :], name]
    if name in done:
      return []
    for other in sorted(graph[name]):
      if found := visit(other, [*path, name]):
        return found
    done.add(name)
    return []

  return next((found for name in graph if (found := visit(name, []))), [])


def test_a_circle_is_found():
  assert circle({'a': {'b'}, 'b': {'c'}, 'c': {'b'}}) == ['b', 'c', 'b']
  assert circle({'a': {'b', 'c'}, 'b': {'c'}, 'c': set()}) == []


def test_no_modules_import_each_other_in_a_circle():
  """Imports inside functions count too."""
  assert circle({name: imports(name, types=False) for name in MODULES}) == []


FOUNDATION = {'foundation', 'options'}  # may be imported from everywhere
# Room -> the rooms that it may import beside the foundation and itself, also inside of functions.
ARROWS = {
  'models': set(),
  'adapters': {'models'},
  'data': {'parallel'},
  'parallel': set(),
  'checkpoint': set(),
  'objectives': {'models', 'data'},
  'evaluation': {'models', 'data', 'objectives', 'parallel', 'pretrained'},
  'pretrained': {'models', 'adapters', 'data', 'checkpoint', 'config', 'evaluation'},
  'training': {
    *(
      'models',
      'adapters',
      'data',
      'parallel',
      'checkpoint',
      'objectives',
      'evaluation',
      'pretrained',
      'config',
    )
  },
}


@pytest.mark.parametrize('name', ARROWS)
def test_arrows_point_one_way(name):
  """From commands to training and evaluation, to models, objectives, data, and to the foundation."""
  found = {room(other) for module in MODULES if room(module) == name for other in imports(module)}
  assert found - FOUNDATION - {name} <= ARROWS[name]


def test_the_foundation_imports_nothing_above_it():
  for module in MODULES:
    if room(module) == 'foundation':
      assert {room(other) for other in imports(module)} <= {'foundation'}, module
    if room(module) == 'options':
      assert {room(other) for other in imports(module)} <= FOUNDATION, module


def test_few_modules_stand_at_the_top():
  top = [name for name in MODULES if name.count('.') == 1 and not MODULES[name].stem.startswith('__')]
  assert len(top) <= 12


def test_only_the_config_and_checkpoint_formats_know_a_model_by_name():
  """Everybody else has it from the registry, and asks it by the contract."""
  concrete = {MODELS[name].__module__ for name in MODELS.names()} | {'vit_jax.models.vit'}
  knowing = {room(module) for module in MODULES if imports(module) & concrete and room(module) != 'models'}
  assert knowing == {'config', 'pretrained'}


# Classes behind a contract, whose kind nobody outside asks for.
CONTRACTS = {
  *(registry[name].__name__ for registry in (MODELS, OBJECTIVES, EVALUATORS) for name in registry.names()),
  *('Model', 'ModelConfig', 'Objective', 'Evaluator', 'EvaluatorConfig', 'ViT', 'Mixer', 'ResNet'),
}


@pytest.mark.parametrize('name', [name for name in MODULES if room(name) != 'models'])
def test_nobody_asks_around_a_contract(name):
  """No `hasattr`, no `isinstance` of a class behind a contract, no `.kind ==`."""
  for node in nodes(TREES[name]):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
      assert node.func.id != 'hasattr', ast.unparse(node)
      if node.func.id in ('isinstance', 'issubclass'):
        asked = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
        asked |= {each.attr for each in ast.walk(node.args[1]) if isinstance(each, ast.Attribute)}
        assert not asked & CONTRACTS, ast.unparse(node)
    if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == 'kind':
      # NumPy's dtype.kind is not ours.
      assert 'dtype' in ast.unparse(node.left), ast.unparse(node)


@pytest.mark.parametrize('name', MODULES)
def test_modules_are_short_and_have_a_docstring(name):
  text = MODULES[name].read_text()
  assert len(text.splitlines()) < 400
  assert not text or ast.get_docstring(TREES[name])
