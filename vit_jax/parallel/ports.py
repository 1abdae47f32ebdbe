"""Ports of this machine. No JAX here: launchers ask too."""

import errno
import socket


def is_taken(address: str) -> bool:
  """Whether another program listens at 'host:port' of this machine, so that no coordinator can."""
  host, _, port = address.rpartition(':')
  host = host.strip('[]')
  with socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET) as found:
    # As servers do: a port whose last connections are only just closed is free.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      found.bind((host, int(port)))
    except OSError as error:
      return error.errno == errno.EADDRINUSE
  return False
