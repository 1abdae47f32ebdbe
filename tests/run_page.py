"""Runs the code of a page of docs/ from top to bottom, as a reader would: python run_page.py PAGE.

Blocks of shell are run by bash, those of Python in one namespace; one that begins with `# name.py` is saved
as that file. What stands below `<!-- not run: why -->` is left out.
"""

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
  sys.path.insert(0, '.')
  values: dict[str, object] = {'__name__': 'page'}
  for block in blocks(pathlib.Path(sys.argv[1])):
    file = re.match(r'# (\w+\.py)\n', block.code)
    start = time.time()
    if not block.is_run:
      continue
    if block.language == 'sh':
      subprocess.run(['bash', '-euc', block.code], check=True)
    elif file:
      pathlib.Path(file[1]).write_text(block.code)
    else:
      exec(compile('\n' * block.line + block.code, sys.argv[1], 'exec'), values)
    print(f'--- {time.time() - start:.1f} s\n', flush=True)


if __name__ == '__main__':
  main()
