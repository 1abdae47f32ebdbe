"""Checkpoints and label files by address or published name, downloaded once into the user's cache.

Each address has a folder of its own, named by a digest of the whole address, query included:
~/.cache/vit_jax/downloads/HOST/DIGEST/FILE.
"""

import contextlib
import pathlib
import re
import urllib.parse
from collections.abc import Iterator

import filelock

from vit_jax.foundation import buckets, cache
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import bucket_files, catalogue, file_kinds, http_download
from vit_jax.pretrained.http_download import Patience

_PATIENCE = Patience()
_LONGEST_NAME = 120  # file systems allow 255 bytes


def is_address(source: str) -> bool:
  """Whether `source` is a network address and not a path or a name."""
  return source.startswith(('https://', 'http://')) or buckets.is_bucket(source)


def local_file(
  source: str, kind: file_kinds.Kind = 'checkpoint', patience: Patience = _PATIENCE
) -> pathlib.Path:
  """The local copy of an address or of a published file, downloaded unless it is in the cache.

  Args:
    source: an https://, http://, gs:// or s3:// address, or a published name such as 'imagenet21k/ViT-B_16'.
      In buckets, also of a folder with a model's files.
    kind: what the file has to be; a web page in its place is refused.
    patience: how long an http server may take.

  Raises:
    UserError: there is no such file, the server cannot be reached or sends something else, the download broke
      off, or the cache cannot be written.
  """
  # What is published, and all else where the library is not installed, has an https address, which needs neither
  # the library nor credentials.
  with_library = (
    buckets.is_bucket(source) and not catalogue.is_in_bucket(source) and buckets.is_installed(source)
  )
  if source.startswith('s3://') or with_library:
    bucket = buckets.Bucket(source)
    with _cache_errors(source):
      return bucket_files.local_copy(source, kind, bucket)
  if is_address(source):
    url = source
    if buckets.is_bucket(source):  # what is public in one has an https address
      url = catalogue.BUCKETS_URL + urllib.parse.quote(source.removeprefix('gs://'))
    return _cached(url, source, [], kind, patience)
  if not catalogue.in_grammar(source):
    raise UserError(
      f'{source} is no name that AugReg published; did you mean {catalogue.nearest(source)[0]}?'
    )
  near = [] if catalogue.is_published(source) else catalogue.nearest(source)
  return _cached(catalogue.url(source), source, near, kind, patience)


def _cached(url: str, name: str, near: list[str], kind: file_kinds.Kind, patience: Patience) -> pathlib.Path:
  """The cached file of an address; `name` is what the person called it, `near` what may be meant instead."""
  try:
    address = urllib.parse.urlsplit(url)
    host = address.hostname or ''
  except ValueError as error:
    raise UserError(f'{name} is not a valid address ({error}); check it.') from error
  with _cache_errors(name):
    path = cache.folder_of(f'downloads/{_harmless(host)}', url) / _file_name(address)
    if http_download.is_complete(path):
      return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path.with_name('.lock')):  # of several processes one downloads, the others wait
      if not http_download.is_complete(path):
        _download(url, name, near, path, kind, patience)
    return path


@contextlib.contextmanager
def _cache_errors(name: str) -> Iterator[None]:
  """Turns errors of the cache's disk into a UserError."""
  try:
    yield
  except (OSError, RuntimeError) as error:  # RuntimeError: no home directory, or no locks on that disk
    raise UserError(
      f'{name} cannot be kept in the cache ({error}); make room there, or set XDG_CACHE_HOME to a folder '
      'that can be written.'
    ) from error


def _download(
  url: str, name: str, near: list[str], path: pathlib.Path, kind: file_kinds.Kind, patience: Patience
) -> None:
  """Downloads a file to its place in the cache; every failure is a UserError."""
  suggestion = f'; perhaps {" or ".join(near)} is meant' if near else ''
  try:
    whole = http_download.download(url, path.parent, path.name, patience)
  except http_download.FailedError as error:
    if error.status in (403, 404, 410):
      if buckets.is_bucket(name) and not near:
        suggestion = "; for one that is not public: pip install 'vit_jax[gcs]'"
      raise UserError(
        f'There is no public file {name} ({url} answers {error.status}){suggestion}.'
      ) from error
    remedy = '; check the address, or download it in another way and give its local path'
    if isinstance(error, http_download.InterruptedDownloadError):
      remedy = f'; check the network, or give a local path{suggestion}'
      if error.kept:
        remedy = f' after {error.kept:,} bytes, which are kept: the same again goes on from there'
    raise UserError(f'{name} cannot be downloaded from {url}: {error}{remedy}.') from error
  fault = file_kinds.fault(whole, kind)
  if fault:
    whole.unlink()
    raise UserError(
      f'{name} {fault}; look at {url} in a browser, which may ask you to log in, and give the local path '
      'of the file.'
    )
  whole.replace(path)


def _file_name(address: urllib.parse.SplitResult) -> str:
  """A name for the cached file: the path's last part, unless only the query names a checkpoint (…?file=B.npz)."""
  names = [urllib.parse.unquote(address.path.rpartition('/')[2])]
  names += [value.rpartition('/')[2] for _, value in urllib.parse.parse_qsl(address.query)]
  checkpoints = [name for name in names if name.endswith(('.npz', '.safetensors'))]
  return _harmless([*checkpoints, *names][0])


def _harmless(name: str) -> str:
  """A file name without separators, control characters or a leading dot, short enough for any disk."""
  return re.sub(r'[^A-Za-z0-9._+=-]', '_', name)[-_LONGEST_NAME:].lstrip('.') or 'file'
