"""Contenders that are missing or fail: what was measured before is printed, and one sentence says what happened."""

import importlib
import pathlib
import sys
import textwrap

import contenders
import pytest

SERVING = """
  import os, signal, sys
  import contenders

  def build():
    {build}
    return {{'text': 'a fake'}}, work

  def work(steps):
    global turns
    turns += 1
    {turn}
    print('a line of its own')
    return {{'seconds': steps / 10}}

  turns = 0
  contenders.serve(build)
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
  """What starts a fake contender: command(build='…', turn='…'), with lines of Python."""
  monkeypatch.setenv('PYTHONPATH', str(pathlib.Path(contenders.__file__).parent))

  def write(*, build: str = 'pass', turn: str = 'pass') -> list[str]:
    path = tmp_path / f'fake_{len(list(tmp_path.iterdir()))}.py'
    path.write_text(textwrap.dedent(SERVING).format(build=build, turn=turn))
    return [sys.executable, str(path)]

  return write


def test_turns_have_the_figures_of_each_contender(command):
  started = contenders.start({'one': command(), 'other': command()})
  turns = contenders.take_turns(started, 3, 5, uncounted=1)
  assert started['one'].hello == {'text': 'a fake'}
  assert not turns.ended and len(turns) == 3 and turns.each('other', 'seconds') == [0.5] * 3


def test_turns_that_disagree_are_said():
  turns = contenders.Turns(
    {
      name: [{'wall': value} for value in values]
      for name, values in {
        'quiet': [1.0, 1.02, 1.01, 1.0, 1.03],
        'disturbed': [1.0, 1.9, 1.0, 1.4, 1.1],
      }.items()
    },
    ended='',
  )
  assert turns.disagreement('wall').endswith('spans, for disturbed (59% of its median).')
  assert not contenders.Turns({'quiet': turns.figures['quiet']}, ended='').disagreement('wall')


@pytest.mark.parametrize(
  ('build', 'said'),
  [
    ('sys.exit(3)', 'fake ended early with exit code 3: it said nothing.'),
    ("raise ValueError('odd')", 'fake ended early with exit code 1: ValueError: odd.'),
    ('import contenders.part', 'fake ended early with exit code 1: ModuleNotFoundError: '),
  ],
)
def test_contender_that_exits_at_once_ends_the_benchmark_with_one_sentence(command, build, said):
  with pytest.raises(SystemExit) as end:
    contenders.start({'sound': command(), 'fake': command(build=build)})
  assert str(end.value.code).startswith(said) and len(str(end.value.code).splitlines()) == 1


def test_contender_whose_library_is_missing_is_left_out(command, capsys):
  started = contenders.start({'fake': command(build='import no_such_library'), 'sound': command()})
  assert list(started) == ['sound']
  assert capsys.readouterr().out == (
    'fake is left out: there is no no_such_library; install it for its Python.\n'
  )
  assert len(contenders.take_turns(started, 1, 1)) == 1


def test_benchmark_without_any_contender_is_a_sentence(command):
  with pytest.raises(SystemExit, match='No contender is left; install what they need'):
    contenders.start({'fake': command(build='import no_such_library')})


@pytest.mark.parametrize(
  ('turn', 'said'),
  [
    ('turns < 3 or os.kill(os.getpid(), signal.SIGKILL)', 'fake ended early by SIGKILL: a line of its own.'),
    ("turns < 3 or sys.exit('Out of memory.')", 'fake ended early with exit code 1: Out of memory.'),
  ],
)
def test_turns_before_a_contender_dies_are_kept(command, turn, said):
  started = contenders.start({'sound': command(), 'fake': command(turn=turn)})
  turns = contenders.take_turns(started, 5, 1)
  assert turns.ended == said
  assert len(turns) == 2 and [len(figures) for figures in turns.figures.values()] == [2, 2]


class Fake:
  """In the place of `contenders.Contender`: 'missing' ones are not here, 'dying' ones fail in their third turn."""

  missing: tuple[str, ...] = ()
  dying: tuple[str, ...] = ()

  def __init__(self, name, command, environment=None):
    if name in self.missing:
      raise contenders.Missing(f'{name} is left out.')
    self.hello = {'text': f'a fake {name}', 'first': 1.0, 'logits': [0.0]}
    self._name, self._turns = name, 0

  def turn(self, steps):
    self._turns += 1
    if self._name in self.dying and self._turns == 3:
      raise contenders.Ended(f'{self._name} ended early.')
    return dict.fromkeys(('seconds', 'peak', 'wall', 'processor', 'rate', 'per_core', 'mib'), 2.0)

  def end(self):
    pass


@pytest.fixture
def benchmark(tmp_path, monkeypatch, capsys):
  """Runs a script with fake contenders; what it printed, and what it ended with."""

  def run(script: str, *flags: str, missing: tuple[str, ...] = (), dying: tuple[str, ...] = ()):
    monkeypatch.setattr(contenders, 'Contender', type('_', (Fake,), {'missing': missing, 'dying': dying}))
    module = importlib.import_module(script)
    if script == 'inference':
      monkeypatch.setattr(module, 'save_random', lambda variant, folder: None)
    if script == 'input_pipeline':
      (tmp_path / 'image.jpg').write_bytes(b'')
      monkeypatch.setattr(module, 'fidelity', lambda files, size: '')
      monkeypatch.setattr(module, 'SETTLE', 0)
      flags = (*flags, f'--images={tmp_path}', '--tensorflow_python=python', '--threads=1')
    monkeypatch.setattr(sys, 'argv', [f'{script}.py', '--turns=4', *flags])
    ended = ''
    try:
      module.main()
    except SystemExit as end:
      ended = str(end.code)
    return capsys.readouterr().out, ended

  return run


@pytest.mark.parametrize(
  ('script', 'measured'),
  [
    ('train_step', 'batch 8, float32, 2 turns'),
    ('small_model', 'medians of 2 turns'),
    ('inference', 'medians of 2 turns'),
    ('input_pipeline', '1 threads, tf.data       2 images/s'),
  ],
)
def test_turns_before_a_contender_dies_are_printed_before_the_sentence(benchmark, script, measured):
  said, ended = benchmark(script, dying=('ours',))
  assert ended == 'ours ended early.' and measured in said
  assert len([line for line in said.splitlines() if 'ours ' in line]) == 1


@pytest.mark.parametrize(
  ('script', 'missing', 'measured'),
  [
    ('train_step', ('eager',), '1.00 × the speed of compiled'),
    ('small_model', ('eager', 'compiled', 'gemm'), '1.00 × the speed of ours'),
    ('inference', ('eager', 'compiled'), '1.00 × the speed of ours'),
    ('input_pipeline', ('tf.data', 'PyTorch'), '1 threads, ours          2 images/s'),
  ],
)
def test_contenders_that_are_here_are_compared_without_those_that_are_not(
  benchmark, script, missing, measured
):
  said, ended = benchmark(script, missing=missing)
  assert not ended and measured in said
  assert [line for line in said.splitlines() if 'left out' in line] == [
    f'{name} is left out.' for name in missing
  ]
