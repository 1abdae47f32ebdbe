"""Damages sound files of every kind at random and reads them; counts what became of each.

  python tests/attacks/fuzz_readers.py --cases=10000 --seed=1 --log=fuzz.jsonl
  python tests/attacks/fuzz_readers.py --cases=500 --reader=tar --reader=zip

Case n of a seed is the same whatever the number of cases; with the same --log it goes on where it stopped. The
files are read in processes with little memory; one that dies or hangs is counted, and the next one goes on.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BAD = ('no sentence', 'traceback', 'hang', 'died', 'code ran')
OUTCOMES = ('same values', 'one sentence', 'other values', *BAD)
BATCH = 1000  # cases of a process
PATIENCE = 900  # seconds on the clock, after which the process of a batch counts as hanging


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--cases', type=int, default=1000)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--reader', action='append', help='only this one; may be given several times')
  parser.add_argument('--log', type=pathlib.Path, help='a line of JSON for each case')
  options = parser.parse_args()
  found = fuzz(options.cases, options.seed, options.reader or [], options.log)
  print(table(found))
  for line in found:
    if line['outcome'] in BAD:
      print(json.dumps(line)[:500])
  sys.exit(any(line['outcome'] in BAD for line in found))


def fuzz(cases: int, seed: int, readers: list[str], log: pathlib.Path | None = None) -> list[dict]:
  """What became of each case."""
  found = []
  if log is not None and log.exists():
    found = [json.loads(line) for line in log.read_text().splitlines()]
  with tempfile.TemporaryDirectory() as folder:
    while len(found) < cases:
      last = min(len(found) + BATCH, cases)
      new = _batch(folder, seed, len(found), last, readers)
      found += new
      if log is not None:
        with log.open('a') as file:
          file.writelines(json.dumps(line) + '\n' for line in new)
  return found


def _batch(folder: str, seed: int, first: int, last: int, readers: list[str]) -> list[dict]:
  """The cases first … last - 1, or those up to one at which the process died or hung."""
  script = pathlib.Path(__file__).with_name('fuzz_targets.py')
  environment = os.environ | {'PYTHONPATH': str(script.parents[2]), 'JAX_PLATFORMS': 'cpu', 'NPROC': '2'}
  environment |= {'XDG_CACHE_HOME': f'{folder}/cache', 'PYTHONDONTWRITEBYTECODE': '1'}
  environment['MALLOC_ARENA_MAX'] = '2'
  command = [sys.executable, str(script), f'{folder}/{first}', *map(str, (seed, first, last)), *readers]
  how, code = 'died', 0
  with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
    try:
      code = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, timeout=PATIENCE
      ).returncode
    except subprocess.TimeoutExpired:
      how = 'hang'
    for file in (output, errors):
      file.seek(0)
    found = [json.loads(line) for line in output if line.startswith(b'{')]  # libraries print too
    said = errors.read().decode(errors='replace')[-2000:]
  if not found and code:
    raise RuntimeError(said)
  if first + len(found) < last:
    case = f'{seed}/{first + len(found)}'
    found.append({'reader': '?', 'case': case, 'outcome': how, 'text': said, 'seconds': 0.0, 'MiB': 0})
  return found


def table(found: list[dict]) -> str:
  """Readers against outcomes, in Markdown."""
  counts = collections.Counter((line['reader'], line['outcome']) for line in found)
  readers = list(dict.fromkeys(line['reader'] for line in found))
  rows = [['reader', 'cases', *OUTCOMES]]
  for reader in [*readers, 'all']:
    numbers = [
      sum(n for (name, kind), n in counts.items() if kind == outcome and reader in (name, 'all'))
      for outcome in OUTCOMES
    ]
    rows.append([reader, *(f'{number:,}' for number in (sum(numbers), *numbers))])
  lines = ['| ' + ' | '.join(row) + ' |' for row in rows]
  lines.insert(1, '|---' + '|--:' * (len(rows[0]) - 1) + '|')
  slowest, largest = (max(line[key] for line in found) for key in ('seconds', 'MiB'))
  lines += [
    '',
    f'The slowest case took {slowest:.1f} s of a processor; the processes {largest:,} MiB at most.',
  ]
  return '\n'.join(lines)


if __name__ == '__main__':
  main()
