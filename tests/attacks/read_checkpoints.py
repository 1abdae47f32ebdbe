"""Reads the checkpoints that a JSON file names, one after the other, in little memory; prints what became of each.

python read_checkpoints.py CASES.json: {name: path} in, one line of JSON a case out.
"""

import functools
import json
import pathlib
import sys

from limited import outcome, restrict_memory

from vit_jax.pretrained import formats

MEMORY = 768 * 2**20  # bytes beyond what the process has after its start


def main() -> None:
  cases = json.loads(pathlib.Path(sys.argv[1]).read_text())
  for number, (name, path) in enumerate(cases.items()):
    if number == 1:  # the first is a sound one, with which everything is imported
      restrict_memory(MEMORY)
    print(json.dumps([name, *outcome(functools.partial(formats.read, path))]), flush=True)


if __name__ == '__main__':
  main()
