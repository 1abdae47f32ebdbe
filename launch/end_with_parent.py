"""Runs a command that is killed when the process that started it ends, in whatever way that happens.

python launch/end_with_parent.py PARENT COMMAND…

PARENT is the process id of the one that starts this program. The command replaces this program, so it keeps
its process id, output and exit code. Only Linux can do this; elsewhere the command is run without it.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def main() -> None:
  parent, *command = sys.argv[1:]
  if sys.platform == 'linux':
    # The kernel keeps this setting when the command replaces this program.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
      sys.exit(f'Process {parent} has ended already; {command[0]} was not started.')
  try:
    os.execvp(command[0], command)
  except OSError as error:
    print(f'{command[0]} cannot be run: {error.strerror}.', file=sys.stderr)
    sys.exit(2)


if __name__ == '__main__':
  main()
