"""Reads the checkpoints that a JSON file names, one after the other, in little memory; prints what became of each.

python read_checkpoints.py CASES.json: {name: path} in, one line of JSON a case out.
"""

import json
import pathlib
import resource
import signal
import sys
import time

from vit_jax.errors import UserError
from vit_jax.pretrained import formats

MEMORY = 768 * 2**20  # bytes beyond what the process has after its start
SECONDS = 60  # on the clock, after which a case is stopped; a busy machine makes all of them slow


def main() -> None:
  cases = json.loads(pathlib.Path(sys.argv[1]).read_text())
  signal.signal(signal.SIGALRM, _too_long)
  for number, (name, path) in enumerate(cases.items()):
    if number == 1:  # the first is a sound one, with which everything is imported
      pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
      limit = pages * resource.getpagesize() + MEMORY
      resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.alarm(SECONDS)
    began = time.process_time()
    try:
      formats.read(path)
      kind, text = 'read', ''
    except UserError as error:
      kind, text = 'UserError', str(error)
    except BaseException as error:
      kind, text = type(error).__name__, str(error)[:500]
    signal.alarm(0)
    print(json.dumps([name, kind, text, time.process_time() - began]), flush=True)


def _too_long(*_: object) -> None:
  raise TimeoutError


if __name__ == '__main__':
  main()
