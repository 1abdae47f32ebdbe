"""The Hugging Face Hub on this machine: the part of its protocol by which repositories are read, made and written.

Small files are sent as they are; tensors and parquet files lie in a storage of another origin (`localhost`), to which
the Hub redirects, as it does. Xet is not spoken, for which HF_HUB_DISABLE_XET has clients not ask.
"""

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

TOKEN = 'hf_of_me'
_LARGE = ('.safetensors', '.npz', '.parquet', '.bin')


def _sha1(content: bytes) -> str:
  return hashlib.sha1(b'blob %d\0' % len(content) + content).hexdigest()  # as git


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()


@dataclasses.dataclass
class Repository:
  """Files of each commit, and the commit of each branch."""

  access: str = 'public'  # or 'private', 'gated'
  commits: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)
  branches: dict[str, str] = dataclasses.field(default_factory=dict)

  def commit(self, files: dict[str, bytes], branch: str = 'main') -> str:
    """Sets the files of a branch; the commit."""
    number = _sha1(repr((len(self.commits), branch, sorted(files))).encode())
    self.commits[number], self.branches[branch] = files, number
    return number


class Hub(http.server.ThreadingHTTPServer):
  """The repositories by 'models/org/name' and 'datasets/org/name', and what was asked for."""

  def __init__(self) -> None:
    super().__init__(('127.0.0.1', 0), _Handler)
    self.repositories: dict[str, Repository] = {}
    self.storage: dict[str, bytes] = {}  # SHA-256 -> content
    self.requests: list[tuple[str, str, str | None]] = []  # method, path, Range
    self.leaked: list[str] = []  # paths of the storage's requests that had a token
    self.cut_at: int | None = None  # bytes after which the next answer of the storage breaks off
    self.cards: list[str] = []  # README.md as they were checked

  def add(self, name: str, files: dict[str, bytes] | pathlib.Path, **options: str) -> Repository:
    """Adds a repository of a folder's files, or of these."""
    if isinstance(files, pathlib.Path):
      files = {str(path.relative_to(files)): path.read_bytes() for path in files.rglob('*') if path.is_file()}
    repository = self.repositories[name] = Repository(**options)
    repository.commit(files)
    self.storage |= {_sha256(content): content for content in files.values()}
    return repository

  def asked(self, part: str) -> list[str | None]:
    """The Range of each GET whose path has that part."""
    return [span for verb, path, span in self.requests if verb == 'GET' and part in path]


class _Refused(Exception):
  """Status and code of an answer, and the commit that was asked for."""


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  server: Hub

  def handle_any(self) -> None:
    self.body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
    self.is_me = self.headers.get('Authorization') == f'Bearer {TOKEN}'
    self.path, _, self.query = self.path.partition('?')
    self.server.requests.append((self.command, self.path, self.headers.get('Range')))
    name, found = next(
      (name, found) for pattern, name in _ROUTES if (found := re.fullmatch(pattern, self.path))
    )
    try:
      getattr(self, name)(*(text and urllib.parse.unquote(text) for text in found.groups()))
    except _Refused as refused:
      status, code, commit = (*refused.args, None)[:3]
      self.send(status, X_Error_Code=code, X_Error_Message=code, X_Repo_Commit=commit)

  do_GET = do_HEAD = do_POST = do_PUT = handle_any  # noqa: N815

  def send(self, status: int, content: bytes = b'', **headers: str | None) -> None:
    self.send_response(status)
    for name, value in ({'Content_Length': str(len(content))} | headers).items():
      if value is not None:
        self.send_header(name.replace('_', '-'), value)
    self.end_headers()
    if self.command != 'HEAD':
      self.wfile.write(content)

  def send_json(self, value: object, status: int = 200) -> None:
    self.send(status, json.dumps(value).encode())

  def opened(self, name: str, revision: str | None) -> tuple[Repository, str, dict[str, bytes]]:
    """The repository, the commit and its files."""
    repository = self.server.repositories.get(name)
    if repository is not None and repository.access == 'gated' and not self.is_me:
      raise _Refused(401, 'GatedRepo')
    if repository is None or (repository.access == 'private' and not self.is_me):
      raise _Refused(404 if self.is_me else 401, 'RepoNotFound')
    commit = repository.branches.get(revision or 'main', revision or '')
    if commit not in repository.commits:
      raise _Refused(404, 'RevisionNotFound')
    return repository, commit, repository.commits[commit]

  def info(self, name: str, revision: str | None) -> None:
    repository, commit, files = self.opened(name, revision)
    said = {'id': name.partition('/')[2], 'sha': commit, 'private': repository.access == 'private'}
    self.send_json(said | {'siblings': [{'rfilename': path} for path in files]})

  def tree(self, name: str, revision: str, folder: str | None) -> None:
    below, items = f'{folder}/' if folder else '', {}
    for path, content in self.opened(name, revision)[2].items():
      inner, slash, _ = path.removeprefix(below).partition('/')
      if path.startswith(below) and slash:
        items[below + inner] = {'type': 'directory', 'path': below + inner, 'oid': '0', 'size': 0}
      if path.startswith(below) and (not slash or 'recursive=true' in self.query.lower()):
        lfs = {'oid': _sha256(content), 'size': len(content), 'pointerSize': 134}
        items[path] = {'type': 'file', 'path': path, 'oid': _sha1(content), 'size': len(content)}
        items[path] |= {'lfs': lfs} if path.endswith(_LARGE) else {}
    self.send_json(list(items.values()))

  def resolve(self, kind: str | None, name: str, revision: str, path: str) -> None:
    _, commit, files = self.opened(f'{kind or "models/"}{name}', revision)
    if path not in files:
      raise _Refused(404, 'EntryNotFound', commit)
    content = files[path]
    if not path.endswith(_LARGE):
      return self.send(200, content, ETag=f'"{_sha1(content)}"', X_Repo_Commit=commit)
    oid = _sha256(content)
    linked = {'X_Linked_Etag': f'"{oid}"', 'X_Linked_Size': str(len(content)), 'X_Repo_Commit': commit}
    self.send(302, Location=f'http://localhost:{self.server.server_port}/storage/{oid}', **linked)

  def stored(self, oid: str) -> None:
    if 'Authorization' in self.headers:
      self.server.leaked.append(self.path)
    if self.command == 'PUT':
      self.server.storage[oid] = self.body
      return self.send(200)
    content = self.server.storage[oid]
    span = re.fullmatch(r'bytes=(\d+)-(\d*)', self.headers.get('Range') or '')
    first, last = (int(span[1]), int(span[2] or len(content) - 1)) if span else (0, len(content) - 1)
    part, cut = content[first : last + 1], self.server.cut_at
    self.server.cut_at = None
    ranged = {'Content_Range': f'bytes {first}-{first + len(part) - 1}/{len(content)}'} if span else {}
    self.send(206 if span else 200, part[:cut], Content_Length=str(len(part)), **ranged)
    self.close_connection = cut is not None

  def create(self) -> None:
    if not self.is_me:
      raise _Refused(401, 'Unauthorized')
    asked = json.loads(self.body)
    name = f'models/{asked["organization"]}/{asked["name"]}'
    if is_new := name not in self.server.repositories:
      private = asked.get('private') or asked.get('visibility') == 'private'
      self.server.add(name, {'.gitattributes': b''}, access='private' if private else 'public')
    self.send_json({'url': f'http://127.0.0.1/{name.partition("/")[2]}'}, 200 if is_new else 409)

  def branch(self, name: str, branch: str) -> None:
    branches = self.server.repositories[name].branches
    status = 409 if branch in branches else 200
    branches.setdefault(branch, branches['main'])
    self.send_json({}, status)

  def check_card(self) -> None:
    self.server.cards.append(json.loads(self.body)['content'])
    self.send_json({'errors': [], 'warnings': []})

  def preupload(self, name: str, revision: str) -> None:
    files = json.loads(self.body)['files']
    for file in files:
      file['uploadMode'] = 'lfs' if file['path'].endswith(_LARGE) else 'regular'
      file['shouldIgnore'] = False
    self.send_json({'files': files})

  def batch(self, name: str) -> None:
    storage, objects = f'http://localhost:{self.server.server_port}/storage', json.loads(self.body)['objects']
    for item in objects:
      item['actions'] = {'upload': {'href': f'{storage}/{item["oid"]}'}}
    self.send_json({'transfer': 'basic', 'objects': objects})

  def commit(self, name: str, branch: str) -> None:
    repository, _, before = self.opened(name, branch)
    files = dict(before)
    for line in map(json.loads, self.body.splitlines()):
      value = line['value']
      if line['key'] == 'file':
        files[value['path']] = base64.b64decode(value['content'])
      elif line['key'] == 'lfsFile':
        files[value['path']] = self.server.storage[value['oid']]
      elif line['key'] == 'deletedFile':
        del files[value['path']]
    number = repository.commit(files, branch)
    self.send_json({'commitUrl': f'/{name}/commit/{number}', 'commitOid': number, 'success': True})

  def missing(self) -> None:
    raise _Refused(404, 'NotFound')

  def log_message(self, *unused) -> None:
    """Tests look at `Hub.requests`."""


_REPOSITORY = r'((?:models|datasets)/[^/]+/[^/]+)'
_ROUTES = (
  ('/api/repos/create', 'create'),
  ('/api/validate-yaml', 'check_card'),
  (rf'/api/{_REPOSITORY}(?:/revision/([^/]+))?', 'info'),
  (rf'/api/{_REPOSITORY}/tree/([^/]+)(?:/(.+))?', 'tree'),
  (rf'/api/{_REPOSITORY}/branch/([^/]+)', 'branch'),
  (rf'/api/{_REPOSITORY}/preupload/([^/]+)', 'preupload'),
  (rf'/api/{_REPOSITORY}/commit/([^/]+)', 'commit'),
  (r'/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)', 'resolve'),
  (r'/([^/]+/[^/]+)\.git/info/lfs/objects/batch', 'batch'),
  ('/storage/([0-9a-f]{64})', 'stored'),
  ('.*', 'missing'),
)


@contextlib.contextmanager
def running(cache: pathlib.Path) -> Iterator[Hub]:
  """A running Hub, which this process asks in the place of the real one, without a token and with a cache of its own.

  The library reads its variables when it is imported; processes that are started get them too.
  """
  from huggingface_hub import constants

  with pytest.MonkeyPatch.context() as patch, Hub() as hub:
    url = f'http://127.0.0.1:{hub.server_port}'
    patch.setattr(constants, 'ENDPOINT', url)
    template = f'{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}'
    patch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
    places = {'HF_HUB_CACHE': str(cache), 'HF_TOKEN_PATH': str(cache / 'token')}
    for name, value in (places | {'HF_HUB_OFFLINE': False, 'HF_HUB_DISABLE_XET': True}).items():
      patch.setattr(constants, name, value)
      patch.setenv(name, str(value))
    patch.setenv('HF_ENDPOINT', url)
    patch.delenv('HF_TOKEN', raising=False)
    threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
    yield hub
    hub.shutdown()
