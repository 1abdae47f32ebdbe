"""The Hugging Face Hub: addresses of its repositories, and errors of huggingface_hub (the extra 'huggingface')."""

import contextlib
import re
import sys
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax.foundation.errors import UserError, first_line

_PREFIX = r'(?:hf|hf-hub|hf_hub):(?://)?'
# org/name, org/name@revision, org/name:file and org/name@revision:file.
_ADDRESS = re.compile(r'(\w[\w.-]*/[\w.-]+)(?:@([^:@]+))?(?::(.+))?')
_TIMM = re.compile(r'[a-z]\w*_\w+\.\w+')  # with its tag, as in 'vit_base_patch16_224.augreg_in21k'
# Endings of files, whose paths are no names of repositories.
_FILES = re.compile(r'\.(npz|safetensors|bin|pth?|ckpt|msgpack|h5|json|py|txt|csv)$')


class Address(NamedTuple):
  """A repository of the Hub, or a file in it."""

  repository: str  # 'org/name'
  revision: str | None = None  # a branch, tag or commit; None: the default branch
  file: str | None = None  # the path of a file or folder in the repository; None: the whole

  def __str__(self) -> str:
    revision, file = (f'@{self.revision}' if self.revision else ''), (f':{self.file}' if self.file else '')
    return f'hf:{self.repository}{revision}{file}'


class UnknownError(UserError):
  """Nobody says that there is such a repository: the Hub does not have it, or cannot be asked."""


def address_of(name: str) -> Address | None:
  """The address that a name with a prefix is ('hf:org/name', 'hf-hub:…', 'hf_hub:…'); None: it has no such prefix.

  Raises UserError where what follows the prefix is no address.
  """
  prefix = re.match(_PREFIX, name)
  if prefix is None:
    return None
  found = _ADDRESS.fullmatch(name, prefix.end())
  if found is None:
    raise UserError(
      f'{name!r} names no repository of the Hub; write hf:org/name, or hf:org/name@revision:file.'
    )
  return Address(*found.groups())


def guessed(name: str) -> Address | None:
  """The address that a name without a prefix may be: 'org/name', or a model of timm's with its tag; None: neither."""
  found = _ADDRESS.fullmatch(f'timm/{name}' if _TIMM.fullmatch(name) else name)
  return Address(*found.groups()) if found and not _FILES.search(found[1]) else None


def of_data(address: Address) -> str:
  """The address, for fsspec, of a data set; UserError where there is none, or the Hub does not answer."""
  with opened(address) as library:
    library.HfApi().dataset_info(address.repository, revision=address.revision)
  revision = f'@{urllib.parse.quote(address.revision, safe="")}' if address.revision else ''
  return f'hf://datasets/{address.repository}{revision}' + (f'/{address.file}' if address.file else '')


@contextlib.contextmanager
def opened(address: Address) -> Iterator[Any]:
  """Gives the package huggingface_hub; inside, its errors become one sentence, a UserError. The disk's errors stay.

  It shows progress on a terminal only. Raises UnknownError where the package is not installed, too.
  """
  try:
    import huggingface_hub
    from huggingface_hub import utils
  except ImportError:
    raise UnknownError(
      f"{address} needs the package huggingface_hub: pip install 'vit_jax[huggingface]'."
    ) from None
  with contextlib.nullcontext() if sys.stderr.isatty() else utils.disable_progress_bars():
    try:
      yield huggingface_hub
    except Exception as error:  # those of httpx and hf_xet have no type in common
      if isinstance(error, UserError) or (isinstance(error, OSError) and error.errno is not None):
        raise
      raise _sentence(error, address) from error


def _sentence(error: Exception, address: Address) -> UserError:
  """What a person can mend of an error of the library."""
  from huggingface_hub import constants, errors, get_token

  name, reason = address.repository, first_line(error)
  log_in = 'see what its token may do' if get_token() else 'log in by `hf auth login`, or set HF_TOKEN'
  absent = f'There is no repository {name} on the Hub, or it is private; check the name, or {log_in}.'
  silent = f'the Hub does not answer ({first_line(error.__cause__ or error)}); check the network.'
  if constants.HF_HUB_OFFLINE:
    silent = 'HF_HUB_OFFLINE is set; download it once where there is a network.'
  for kind, said in {
    errors.GatedRepoError: UserError(
      f'{name} is gated; ask for access on its page of the Hub, and {log_in}.'
    ),
    errors.RepositoryNotFoundError: UnknownError(absent),
    errors.RevisionNotFoundError: UserError(f'{name} has no revision {address.revision}; check it.'),
    errors.HFValidationError: UnknownError(f'{name} is no name on the Hub ({reason}); check it.'),
    errors.LocalEntryNotFoundError: UnknownError(f'{address} is not in the cache, and {silent}'),
    errors.OfflineModeIsEnabled: UserError(f'{address} is on the Hub, and {silent}'),
  }.items():
    if isinstance(error, kind):
      return said
  response = getattr(error, 'response', None)
  if response is not None and response.status_code in (401, 403):
    return UserError(f'The Hub does not allow that for {name} ({reason}); {log_in}.')
  return UserError(f'The Hub fails at {address} ({reason}); check the network, and start again.')
