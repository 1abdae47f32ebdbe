"""The cycles of custom kernels, of which the TPU compiler leaves no estimate in a program.

It writes down their schedules instead, where it is asked to: bundles of instructions, one a cycle, and how often a
kernel's loop over its grid runs. That is the least that a kernel takes: a bundle may wait for the matrix unit (a
product of large matrices takes 0.86 of its time at peak so, on v5e and v5p), and its operands, which are moved
meanwhile, may take longer (timing.py).
"""

import functools
import os
import pathlib
import re
import tempfile

_FLAGS = '--xla_jf_dump_to={} --xla_jf_dump_llo_pass_label_regex=final_bundles'
_OURS = re.compile(_FLAGS.format(r'\S+') + ' ?')
_SCHEDULE = 'final_bundles.txt'
_BUNDLE = re.compile(r'^ *0x[0-9a-f]+ [A-Z: ]*: *>[ >]*\{', re.MULTILINE)  # in a loop
# Of the loop over the grid, which is the outer one: each step loads, computes or stores, so there are some more.
_STEPS = re.compile(r'scmp\.ge\S* \S+ (\d+) /\* loop exit test')
_CALL = re.compile(r'%(?P<name>[\w.\-]+) = (?P<shape>.+) custom-call\(.*custom_call_target="tpu_custom_call"')
_LAYOUT = re.compile(r'\{[^}]*\}')


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
  """Where this process's compiler writes; it goes with the process."""
  return tempfile.TemporaryDirectory(prefix='schedules')


def write_schedules() -> None:
  """Has libtpu write schedules down, for which it is called before libtpu is loaded."""
  others = _OURS.sub('', os.environ.get('LIBTPU_INIT_ARGS', ''))
  os.environ['LIBTPU_INIT_ARGS'] = f'{_FLAGS.format(_folder().name)} {others}'.strip()


def forget_schedules() -> None:
  """Removes what was written so far, some 100 MB for a program of four blocks."""
  for file in pathlib.Path(_folder().name).glob('*'):
    file.unlink()


def with_cycles(text: str) -> str:
  """The text of the program that was just compiled, each kernel with its `estimated_cycles` where they are known."""
  cycles = _cycles(pathlib.Path(_folder().name))

  def marked(line: re.Match[str]) -> str:
    known = cycles.get(_key(line))
    return line[0] if known is None else f'{line[0]}, schedule={{"estimated_cycles":"{known}"}}'

  return _CALL.sub(marked, text)


def _cycles(folder: pathlib.Path) -> dict[tuple[str, str], int]:
  """Name and shape of each kernel in the folder -> its cycles."""
  found: dict[tuple[str, str], int] = {}
  for file in folder.glob(f'*-schedule-analysis_{_SCHEDULE}'):
    call = _CALL.search(file.read_text(errors='replace'))
    if call is None:
      continue
    for schedule in folder.glob(f'*-{call["name"]}-[0-9][0-9]-{_SCHEDULE}'):
      bundles = schedule.read_text(errors='replace')
      if steps := [int(steps) for steps in _STEPS.findall(bundles)]:
        found[_key(call)] = len(_BUNDLE.findall(bundles)) * max(steps)
  return found


def _key(call: re.Match[str]) -> tuple[str, str]:
  """What equal kernels have in common, of which the compiler schedules one."""
  return call['name'].split('.')[0], _LAYOUT.sub('', call['shape'])
