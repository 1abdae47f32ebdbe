"""Every command that `cli.COMMANDS` lists: help, missing and unknown flags, files that cannot be used.

The tests read a command's flags and examples off its source, so a command is covered as soon as it is listed
there and has a line in INPUTS and OUTPUTS.
"""

import ast
import functools
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from commands import CONFIG, ROOT, assert_said
from fork_server import run, start
from PIL import Image
from released_files import path as released_file

from vit_jax import cli
from vit_jax import config as c
from vit_jax.study import definition
from vit_jax.training import preprocessing, results, resume

STUDY = """
from vit_jax.study.definition import Study, Variant

def get_study():
  return Study('A study', {'one': Variant('quickstart', {'total': '2 steps'})}, seeds=(0,))
"""
# Command -> command lines, each with one input that cannot be used: its name begins with 'bad'.
INPUTS = {
  'train': ['--config=bad.py --workdir=run'],
  'predict': ['--checkpoint=bad.npz photo.png', '--checkpoint=model.npz bad.png'],
  'evaluate': ['--checkpoint=bad.npz digits', '--checkpoint=model.npz bad'],
  'serve': ['bad.npz --port=0'],
  'convert': ['bad.npz run --format=run'],
  'export': ['bad.npz out --format=onnx', 'model.npz out --format=onnx --int8=bad'],
  'push': ['bad.npz pushed'],
  'prepare': ['bad.tar prepared', 'bad.csv prepared'],
  'selftrain': [
    '--teachers=bad.npz --workdir=labelled photos',
    '--teachers=model.npz --workdir=labelled bad.png',
  ],
  'transfer': ['--checkpoint=bad.npz --workdir=table --suite=digits'],
  'study': ['bad.py --workdir=runs'],
  'compare': ['bad'],
  'visualize': ['--checkpoint=bad.npz --out=seen photo.png', '--checkpoint=model.npz --out=seen bad.png'],
  'plan': ['--config=bad.py --topology=cpu:1'],
  'contact_sheet': ['--config=bad.py --workdir=run'],
}
# Command -> command lines, each with one output, {out}.
OUTPUTS = {
  'train': ['--config=config.py --workdir={out}'],
  'predict': [],  # writes to stdout
  'evaluate': ['--checkpoint=model.npz digits --output={out}'],
  'serve': [],  # writes nothing
  'convert': ['model.npz {out}.npz', 'model.npz {out} --format=run', 'model.npz {out} --format=hf'],
  'export': ['model.npz {out} --format=onnx'],
  'push': ['model.npz {out}'],
  'prepare': ['photos {out}'],
  'selftrain': ['--teachers=model.npz --workdir={out} photos'],
  'transfer': ['--checkpoint=model.npz --workdir={out} --suite=digits'],
  'study': ['study.py --workdir={out} --jobs=1'],
  'compare': ['run --out={out}'],
  'visualize': ['--checkpoint=model.npz --out={out} photo.png'],
  'plan': ['--config=config.py --topology=cpu:1 --json={out}.json'],
  'contact_sheet': ['--config=config.py --workdir={out}'],
}
# Of commands that write no file, begin long runs, or else say more than one thing: `push` which kind hf is, too.
WORKING = {
  'predict': ['--checkpoint=model.npz photo.png'],
  'push': ['model.npz {out} --format=vit'],
  'serve': ['model.npz --port=0'],
  'study': ['study.py --workdir=ended'],
}
# Events after the command's begin at which Ctrl-C comes; the last ones come when some commands have ended.
MOMENTS = [4**power for power in range(8)]
EACH_INPUT = [(name, line) for name, lines in INPUTS.items() for line in lines]
EACH_OUTPUT = [(name, line) for name, lines in OUTPUTS.items() for line in lines]

needs_permissions = pytest.mark.skipif(
  os.geteuid() == 0 and sys.platform != 'linux', reason='root cannot be denied a file here'
)


def module_of(name: str) -> str:
  return cli.COMMANDS[name][0]


@functools.cache
def source_of(name: str) -> ast.Module:
  """The source of the module that `python -m` runs."""
  spec = importlib.util.find_spec(module_of(name))
  assert spec is not None
  if spec.submodule_search_locations:
    spec = importlib.util.find_spec(f'{module_of(name)}.__main__')
  assert spec is not None and spec.origin is not None
  return ast.parse(pathlib.Path(spec.origin).read_text())


def calls(node: ast.AST) -> list[tuple[str, list[ast.expr]]]:
  """(function, its arguments) for each call in a piece of source."""
  nodes = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
  return [(ast.unparse(part.func), part.args) for part in nodes]


@functools.cache
def shared_flags() -> dict[str, ast.FunctionDef]:
  """The functions of `cli` that define a flag of several commands, by their names."""
  functions = [node for node in ast.parse(inspect.getsource(cli)).body if isinstance(node, ast.FunctionDef)]
  return {f'cli.{node.name}': node for node in functions if node.name.startswith('define_')}


def defined_flags(node: ast.AST) -> dict[str, Any]:
  """Flag -> its default, for each flag that a piece of source defines."""
  found: dict[str, Any] = {}
  for function, arguments in calls(node):
    if re.match(r'(config_)?flags\.DEFINE_', function):
      found[ast.literal_eval(arguments[0])] = ast.literal_eval(arguments[1])
    elif function in shared_flags():
      found |= defined_flags(shared_flags()[function])
  return found


def flags_of(name: str) -> dict[str, Any]:
  """Flag -> its default, for each flag of a command."""
  return defined_flags(source_of(name))


def required_flags(name: str) -> list[str]:
  """Flags that the source asks for by `cli.required` or `local_folder` and have no default, and --config."""
  asking = ('cli.required', 'cli.local_folder')
  texts = {ast.unparse(arguments[0]) for function, arguments in calls(source_of(name)) if function in asking}
  holders = {flag: f'_{flag.upper()}' for flag, default in flags_of(name).items() if default is None}
  return [flag for flag, holder in holders.items() if holder in texts or flag == 'config']


def examples(name: str) -> list[list[str]]:
  """The command lines in the docstring, split into words, without 'vit_jax NAME'."""
  doc = (ast.get_docstring(source_of(name)) or '').replace('\\\n', '')
  lines = [line.strip() for line in doc.splitlines()]
  start = f'vit_jax {name} '
  return [shlex.split(line.removeprefix(start)) for line in lines if line.startswith(start)]


@pytest.fixture(scope='module')
def workplace(golden, tmp_path_factory) -> pathlib.Path:
  """A folder with everything that the command lines of INPUTS and OUTPUTS name and that is not bad."""
  folder = tmp_path_factory.mktemp('workplace')
  shutil.copy(released_file(golden, 'a_vit_token'), folder / 'model.npz')
  (folder / 'config.py').write_text(CONFIG)
  pixels = np.random.default_rng(0).integers(0, 256, (6, 40, 30, 3), dtype=np.uint8)
  Image.fromarray(pixels[0]).save(folder / 'photo.png')
  for number, image in enumerate(pixels):
    place = folder / 'photos' / ('cat', 'dog')[number % 2]
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(place / f'{number}.png')
  (folder / 'study.py').write_text(STUDY)
  (ended,) = definition.runs(definition.load(str(folder / 'study.py')), folder / 'ended')
  config = preprocessing.resolved(ended.config)
  with resume.claim(config, ended.folder, begun=False, takeover=False):
    pass  # the folder is the run's when the block has ended
  results.write(results.Result({'test/accuracy': 0.5}, 1.0, 1.0, 1, 'cpu', []), ended.folder)
  (folder / 'run').mkdir()
  (folder / 'run/config.json').write_text(json.dumps(c.as_json(c.Config())))
  (folder / 'run/metrics.jsonl').write_text('{"step": 1, "train/loss": 0.5, "learning_rate": 0.1}\n')
  return folder


@pytest.fixture
def place(workplace, tmp_path) -> pathlib.Path:
  """A copy of `workplace` for one test."""
  return shutil.copytree(workplace, tmp_path / 'place')


def test_every_command_has_its_inputs_and_outputs_here():
  assert INPUTS.keys() == OUTPUTS.keys() == cli.COMMANDS.keys()


@pytest.mark.parametrize('name', cli.COMMANDS)
def test_docstring_has_three_examples_with_flags_that_the_command_has(name):
  assert len(examples(name)) >= 3
  words = {word for example in examples(name) for word in example if word.startswith('--') and word != '--'}
  used = {re.split(r'[=.]', word)[0] for word in words}
  assert used <= {f'--{flag}' for flag in flags_of(name)}


@pytest.mark.nightly(but='train$|predict|study')
@pytest.mark.slow
@pytest.mark.parametrize('name', cli.COMMANDS)
def test_help_shows_the_docstring_and_every_flag_with_its_default(name, tmp_path):
  helps = [run(module_of(name), '--help', cwd=tmp_path)]
  if name == 'convert':  # the other ways to ask are one for all commands
    helps.append(run('vit_jax', name, '-h', cwd=tmp_path))
    helps.append(run(module_of(name), '--no_such_flag=1', '--helpfull', cwd=tmp_path))
  text = helps[0].stdout
  for result in helps:
    assert (result.returncode, result.stderr, result.stdout) == (0, '', text)
  assert text.startswith((ast.get_docstring(source_of(name)) or '').strip())
  lines = text.splitlines()
  for flag, default in flags_of(name).items():
    (line,) = (line for line in lines if re.match(rf'  --{flag}( \(|$)', line))
    written = ','.join(default) if isinstance(default, list) else str(default).lower()
    assert line.endswith(f"(default: '{written}')") or (default in (None, []) and line == f'  --{flag}'), line
  assert ('--config.schedule.learning_rate=' in text) == ('config' in flags_of(name))


@pytest.mark.parametrize('name', cli.COMMANDS)
def test_command_line_without_anything_is_answered_with_an_example(name, tmp_path):
  result = run(module_of(name), cwd=tmp_path)
  assert_said(result, f'vit_jax {name} ')
  assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
  ('name', 'flag'), [(name, flag) for name in cli.COMMANDS for flag in required_flags(name)]
)
def test_missing_flag_is_named_with_an_example_that_has_it(name, flag, tmp_path):
  example = next(example for example in examples(name) if any(f'--{flag}=' in word for word in example))
  words = [word for word in example if not re.match(rf'--{flag}[=.]', word)]
  result = run(module_of(name), *words, cwd=tmp_path)
  assert_said(result, f'--{flag} is missing', f'vit_jax {name} ', f' --{flag}=')


def test_some_commands_have_required_flags():
  assert required_flags('visualize') == ['checkpoint', 'out']
  assert {name for name in cli.COMMANDS if required_flags(name)} >= {'train', 'predict', 'transfer', 'plan'}


@pytest.mark.parametrize('name', cli.COMMANDS)
def test_unknown_flag_is_answered_with_the_nearest_one(name, tmp_path):
  flag = max(flags_of(name), key=len)
  misspelt = flag[:-2] + flag[-1] + flag[-2]
  assert_said(
    run(module_of(name), f'--{misspelt}=1', cwd=tmp_path), f'--{misspelt} is not', f'mean --{flag}?'
  )


def make_bad(file: pathlib.Path, kind: str) -> None:
  """Makes an input that cannot be used: a file, or a folder where the name has no ending."""
  if kind == 'missing':
    return
  if not file.suffix:
    shutil.copytree(file.parent / 'run', file)
  if kind == 'damaged':
    for damaged in [file] if file.suffix else list(file.iterdir()):
      damaged.write_bytes(b'\x00\xff nonsense (')
  else:
    if file.suffix:
      file.write_text('')
    file.chmod(0)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['missing', 'damaged', pytest.param('forbidden', marks=needs_permissions)])
@pytest.mark.parametrize(('name', 'line'), EACH_INPUT)
def test_input_that_cannot_be_used_is_named_in_one_sentence(name, line, kind, place):
  bad = next(match for match in re.findall(r'bad[\w.]*', line))
  make_bad(place / bad, kind)
  result = run(module_of(name), *line.split(), cwd=place, as_anybody=True)
  if kind == 'forbidden':
    (place / bad).chmod(0o700)  # so that pytest can remove it
  assert result.returncode == 2, result.stdout + result.stderr
  assert 'Traceback' not in result.stderr
  assert bad in result.stderr
  assert 'cannot be written' not in result.stderr
  if kind == 'forbidden':
    assert 'ermission denied' in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind', ['in the way', 'below a file', pytest.param('forbidden', marks=needs_permissions)]
)
@pytest.mark.parametrize(('name', 'line'), EACH_OUTPUT)
def test_output_that_cannot_be_written_is_named_in_one_sentence(name, line, kind, place):
  blocked = place / 'blocked'
  if kind == 'forbidden':
    blocked.mkdir(mode=0o500)
    out = 'blocked/out'
  elif kind == 'below a file':
    blocked.write_text('mine')
    out = 'blocked/out'
  else:
    out = 'out'
    suffix = re.findall(r'{out}(\.\w+)?', line)[0]
    if suffix:
      (place / f'out{suffix}').mkdir()
    else:
      (place / 'out').write_text('mine')
  result = run(module_of(name), *line.format(out=out).split(), cwd=place, as_anybody=True)
  assert_said(result, out if kind == 'in the way' else 'blocked')
  if kind == 'below a file':
    assert blocked.read_text() == 'mine'


@pytest.mark.slow
@pytest.mark.parametrize(
  'command',
  ['vit_jax.main --help', 'vit_jax.predict --checkpoint=model.npz photo.png'],
  ids=['help', 'result'],
)
def test_full_disk_below_stdout_is_one_sentence(command, place):
  environment = dict(os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS='cpu')
  command = [sys.executable, '-m', *command.split()]
  with open('/dev/full', 'w') as full:
    result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, cwd=place)
  assert result.returncode == 2
  said = result.stderr.decode().splitlines()[-1]
  assert said.startswith('The disk is full: /dev/full cannot be written; free some space there: what was ')


@pytest.mark.parametrize('arguments', [[], ['--help'], ['-h']])
def test_without_a_command_all_commands_are_listed(arguments, tmp_path):
  result = run('vit_jax', *arguments, cwd=tmp_path)
  assert result.returncode == 0 and not result.stderr
  for name, (_, text) in cli.COMMANDS.items():
    assert re.search(rf'^  {name} +{re.escape(text)}$', result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
  ('arguments', 'texts'),
  [
    (['tarin'], ["no command 'tarin'", 'did you mean train?']),
    (['xyz'], [*cli.COMMANDS]),
    (['predict', '--top=0'], ['--top=0', 'positive integer']),
    (['predict', '--format=xml'], ['--format=xml', 'csv, json']),
    (['predict', '--checkpoint'], ['--checkpoint has no value']),
    (['train', '--takeover=perhaps'], ['--takeover=perhaps', 'true or false']),
    (['train', '--batch_size=3'], ['--batch_size', 'did you mean --config.batch_size?']),
    (['train', '--learning_rate=3'], ['did you mean --config.schedule.learning_rate?']),
    (['contact_sheet', '--out=x.png'], ['--out is not a flag; --help lists the flags.']),
    (['train', 'quickstart'], ["'quickstart' is not a flag; did you mean --config=quickstart?"]),
    (
      ['train', '--config=quickstart', '--config.learning_rate=1'],
      ['did you mean config.schedule.learning_rate?'],
    ),
    (['train', '--config=quickstart', '--config.evaluators.val.every=1'], ['config.evaluators.test.every?']),
  ],
)
def test_wrong_value_is_answered_with_what_is_possible(arguments, texts, tmp_path):
  result = run('vit_jax', *arguments, cwd=tmp_path)
  assert_said(result, *texts)
  assert len(result.stderr.splitlines()) == 1


def test_warning_of_a_config_file_is_a_line_without_the_name_of_a_logger(place):
  next((place / 'photos').iterdir()).joinpath('notes.txt').write_text('')
  result = run('vit_jax', 'train', '--config=finetune:model.npz,folder:photos', '--workdir=', cwd=place)
  assert_said(result, '--workdir is empty')
  warning, _ = result.stderr.splitlines()
  assert warning.startswith('Warning: photos: ignored 1 files')


@pytest.mark.nightly(but='-16$')
@pytest.mark.slow
@pytest.mark.parametrize('moment', MOMENTS)
@pytest.mark.parametrize('name', cli.COMMANDS)
def test_interrupt_at_any_moment_is_one_sentence(name, moment, place):
  """The moments are events, such as the opening of a file, so that they do not depend on the machine's speed."""
  if name == 'serve' and moment == MOMENTS[-1]:
    pytest.skip('no such event comes while it waits for requests')
  line = (WORKING.get(name) or OUTPUTS[name])[0].format(out='out')
  result = run(module_of(name), *line.split(), cwd=place, signal_at=(signal.SIGINT, moment))
  said = [line for line in result.stderr.splitlines() if not line.startswith('Workdir:')]
  assert result.returncode in ((130,) if moment == 1 else (130, 75, 0)), result.stderr
  if result.returncode:
    # Where it stands: what the command prints at the same moment may come before or after it.
    sentences = [line for line in said if 'Interrupted' in line]
    assert 'Traceback' not in result.stderr and len(sentences) == 1 and len(said) <= 2, result.stderr


@pytest.mark.nightly(but='train---|export|prepare')
@pytest.mark.slow
@pytest.mark.parametrize(('name', 'line'), EACH_OUTPUT)
def test_sigterm_in_the_middle_of_writing_claims_nothing_and_the_same_command_goes_on(name, line, place):
  words = line.format(out='out').split()
  command = start(module_of(name), *words, cwd=place)
  while command.poll() is None and not list(place.glob('out*')):
    time.sleep(0.001)
  command.send_signal(signal.SIGTERM)
  stdout, stderr = command.communicate(120)  # at most ten on a machine that does nothing else
  assert command.wait() in (-signal.SIGTERM, 75, 0), stderr
  if command.wait():
    assert len(stderr.splitlines()) <= 1 and 'Wrote' not in stdout, stderr
  if name not in ('transfer', 'study'):  # which train for long; their own tests have runs that go on
    again = run(module_of(name), *words, cwd=place)
    assert again.returncode == 0, again.stderr
