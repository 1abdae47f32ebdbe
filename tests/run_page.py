"""Runs the code of a page of docs/ from top to bottom, as a reader would: python run_page.py PAGE.

Blocks of shell are run by bash, those of Python by a new Python that goes on until the next of shell; one that begins
with `# name.py` is saved as that file. What stands below `<!-- not run: why -->` is left out.
"""

import itertools
import pathlib
import re
import subprocess
import sys
import time
from typing import NamedTuple

_BLOCK = re.compile(r'^(<!-- not run: [^\n]* -->\n)?```(sh|python)\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
  """Code between fences."""

  is_run: bool
  language: str
  code: str
  line: int  # of the page on which the code begins, from 0


def blocks(page: pathlib.Path) -> list[Block]:
  """The blocks of sh and python of a page."""
  text = page.read_text()
  found = _BLOCK.finditer(text)
  return [Block(not one[1], one[2], one[3], text.count('\n', 0, one.start(3))) for one in found]


def main() -> None:
  page = pathlib.Path(sys.argv[1])
  run = [block for block in blocks(page) if block.is_run]
  for language, group in itertools.groupby(run, lambda block: block.language):
    start, program = time.time(), ''
    for block in group:
      if language == 'sh':
        subprocess.run(['bash', '-euc', block.code], check=True)
      elif file := re.match(r'# (\w+\.py)\n', block.code):
        pathlib.Path(file[1]).write_text(block.code)
      else:  # on the lines that it has in the page
        program += '\n' * (block.line - program.count('\n')) + block.code
    if program:
      subprocess.run([sys.executable, '-c', program], check=True)
    print(f'--- {time.time() - start:.1f} s\n', flush=True)


if __name__ == '__main__':
  main()
