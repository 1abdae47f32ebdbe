"""Which addresses a table may name: a table of somebody else's is read by this machine, with this machine's rights."""

import ipaddress
import socket
import unicodedata
import urllib.parse

from vit_jax.foundation import buckets
from vit_jax.foundation.errors import UserError

# What clouds give to their own machines (credentials among it), beside the link-local addresses.
_METADATA_NAMES = ('metadata', 'metadata.google.internal', 'instance-data')
_METADATA_ADDRESSES = {
  ipaddress.ip_address(text) for text in ('fd00:ec2::254', 'fd20:ce::254', '100.100.100.200', '168.63.129.16')
}


def check(address: str, where: str) -> None:
  """Checks an address that a table names `where`. No name is looked up: only the text of the address is judged.

  Raises:
    UserError: it chains protocols (simplecache::http://…), or is on a link-local host, such as the server from
      which a cloud's machines get their credentials.
  """
  if buckets.is_bucket(address):  # it has a bucket's name and no host, and fsspec does not take it apart
    return
  if '::' in address:
    what = 'chains protocols'
  elif _is_own_network(address):
    what = "is of the machine's own network (a cloud's server of credentials is there)"
  else:
    return
  raise UserError(
    f'{where} names {address[:200]!r}, which {what}; remove the line, or allow such addresses by --any_address '
    f'if you trust the table.'
  )


def _is_own_network(address: str) -> bool:
  try:
    host = urllib.parse.urlsplit(address).hostname or ''
  except ValueError:  # no address at all, of which reading it says more
    return False
  # As browsers and clients take it: percent signs decoded, wide digits and other full stops made plain.
  host = unicodedata.normalize('NFKC', urllib.parse.unquote(host)).replace('。', '.').strip('.').lower()
  if host in _METADATA_NAMES:
    return True
  try:
    # 169.254.1 and 0xa9fea9fe are addresses too.
    found = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST) if host else []
  except (OSError, UnicodeError):
    return False
  return any(_is_metadata(ipaddress.ip_address(str(entry[4][0]).partition('%')[0])) for entry in found)


def _is_metadata(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
  if isinstance(ip, ipaddress.IPv6Address):
    ip = ip.ipv4_mapped or ip.sixtofour or ip
  return ip.is_link_local or ip in _METADATA_ADDRESSES
