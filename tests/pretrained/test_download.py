"""Downloads against a server of our own: whole, broken off, resumed, changed meanwhile, refused."""

import contextlib
import http.server
import re
import threading

import numpy as np
import pytest
from released_files import logits, path, tensors

from vit_jax.errors import UserError
from vit_jax.pretrained import catalogue, download, formats

CONTENT = bytes(range(256)) * 40_000  # 10 MB


class Server(http.server.ThreadingHTTPServer):
  """Serves `files`; `break_after` bytes it closes the connection, as often as `breaks` says."""

  daemon_threads = True

  def __init__(self):
    super().__init__(('localhost', 0), Handler)
    self.files = {'/vit_models/imagenet21k/ViT-B_16.npz': CONTENT}
    self.ranges, self.etag, self.length = True, '"1"', True
    self.break_after, self.breaks = None, 0
    self.status = None
    self.requests = []  # the Range of each, or None

  def url(self, path: str = '/vit_models/imagenet21k/ViT-B_16.npz') -> str:
    return f'http://localhost:{self.server_port}{path}'


class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    server = self.server
    asked = self.headers.get('Range')
    server.requests.append(asked)
    content = server.files.get(self.path)
    status = server.status or (200 if content is not None else 404)
    if status != 200:
      self.send_error(status)
      return
    first = 0
    if asked and server.ranges and self.headers.get('If-Range') == server.etag:
      first = int(re.fullmatch(r'bytes=(\d+)-', asked)[1])
      self.send_response(206)
      self.send_header('Content-Range', f'bytes {first}-{len(content) - 1}/{len(content)}')
    else:
      self.send_response(200)
    if server.length:
      self.send_header('Content-Length', str(len(content) - first))
    if server.etag:
      self.send_header('ETag', server.etag)
    self.end_headers()
    last = len(content)
    if server.breaks:
      server.breaks -= 1
      last = first + server.break_after
    with contextlib.suppress(ConnectionError):
      self.wfile.write(content[first:last])

  def log_message(self, *_):
    pass


@pytest.fixture
def server(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(download.time, 'sleep', lambda _: None)
  server = Server()
  monkeypatch.setattr(catalogue, 'BUCKETS_URL', f'http://localhost:{server.server_port}/')
  threading.Thread(target=server.serve_forever, daemon=True).start()
  yield server
  server.shutdown()
  server.server_close()


def partial_files(tmp_path):
  return list(tmp_path.rglob('*.partial'))


def test_whole_and_only_once(server, tmp_path):
  file = download.local_file(server.url())
  assert file.read_bytes() == CONTENT
  assert file.is_relative_to(tmp_path / 'cache' / 'vit_jax') and file.name == 'ViT-B_16.npz'
  assert download.local_file(server.url()) == file
  assert server.requests == [None]
  assert not partial_files(tmp_path)


@pytest.mark.parametrize('source', ['imagenet21k/ViT-B_16', 'gs://vit_models/imagenet21k/ViT-B_16.npz'])
def test_names_and_buckets(server, source):
  assert download.local_file(source).read_bytes() == CONTENT


@pytest.mark.parametrize('source', ['sam/ViT-B_32', 'gs://vit_models/sam/ViT-B_32.npz'])
def test_load_from_the_network(server, golden, source):
  server.files['/vit_models/sam/ViT-B_32.npz'] = path(golden, 'a_vit_token').read_bytes()
  server.break_after, server.breaks = 70_000, 1
  io = tensors(golden / 'a_vit_token.io.npz')
  for _ in range(2):
    np.testing.assert_allclose(logits(source, io['images']), io['logits'], rtol=0, atol=1e-5)
  assert server.requests == [None, 'bytes=70000-']


def test_a_plus_in_a_name(server):
  server.files['/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz'] = b'hybrid'
  file = download.local_file('imagenet21k+imagenet2012/R50+ViT-B_16')
  assert file.read_bytes() == b'hybrid'
  assert file.parts[-2:] == ('imagenet21k+imagenet2012', 'R50+ViT-B_16.npz')


def test_broken_off_and_resumed(server):
  server.break_after, server.breaks = 3_000_000, 2
  assert download.local_file(server.url()).read_bytes() == CONTENT
  assert server.requests == [None, 'bytes=3000000-', 'bytes=6000000-']


def test_broken_off_for_good_then_resumed_by_the_next_call(server, tmp_path):
  server.break_after, server.breaks = 1_000_000, 99
  with pytest.raises(UserError, match=r'after 5,000,000 bytes, which are kept: the same again') as error:
    download.local_file(server.url())
  assert '\n' not in str(error.value)
  assert partial_files(tmp_path)
  server.breaks = 0
  assert download.local_file(server.url()).read_bytes() == CONTENT
  assert server.requests[-1] == 'bytes=5000000-'
  assert not partial_files(tmp_path)


def test_a_server_without_ranges(server):
  server.ranges, server.break_after, server.breaks = False, 3_000_000, 1
  assert download.local_file(server.url()).read_bytes() == CONTENT


def test_a_server_without_versions_begins_again(server):
  server.etag, server.break_after, server.breaks = None, 3_000_000, 1
  assert download.local_file(server.url()).read_bytes() == CONTENT
  assert server.requests == [None, None]


def test_a_file_that_changed_meanwhile(server):
  server.break_after, server.breaks = 1_000_000, 99
  with pytest.raises(UserError):
    download.local_file(server.url())
  server.breaks, server.etag = 0, '"2"'
  server.files = {name: content[::-1] for name, content in server.files.items()}
  assert download.local_file(server.url()).read_bytes() == CONTENT[::-1]


def test_a_cached_file_of_another_size_is_fetched_again(server):
  file = download.local_file(server.url())
  file.write_bytes(CONTENT[:-1])
  assert download.local_file(server.url()).read_bytes() == CONTENT
  assert len(server.requests) == 2


def test_not_there_offers_the_nearest(server):
  with pytest.raises(UserError, match=r'no public file imagenet21k/ViT-B_61 .*404.*imagenet21k/ViT-B_16'):
    download.local_file('imagenet21k/ViT-B_61')
  assert len(server.requests) == 1


def test_refused_and_failing(server):
  server.status = 403
  with pytest.raises(UserError, match=r'There is no public file .* answers 403'):
    download.local_file(server.url())
  server.status = 503
  with pytest.raises(UserError, match='the server answers 503; check the network, or give a local path'):
    download.local_file(server.url())


def test_no_network(server):
  server.shutdown()
  server.server_close()
  with pytest.raises(UserError, match=r'cannot be reached .*give a local path; perhaps .*ViT-L_16'):
    download.local_file('imagenet21k/ViT-B_16')


def test_an_address_cannot_leave_the_cache(server):
  with pytest.raises(UserError, match='outside of the cache'):
    download.local_file(server.url('/../../../etc/passwd'))


AUGREG = 'augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0'


def test_the_grammar_of_augreg():
  transfer = AUGREG + '--imagenet2012-steps_20k-lr_0.03-res_384'
  for name in (
    AUGREG,
    transfer,
    AUGREG + '.npz',
    'augreg/B_16',
    AUGREG + '--oxford_iiit_pet-steps_0k-lr_0.01-res_224',
  ):
    assert catalogue.in_grammar(name), name
  assert catalogue.url('augreg/B_16') == catalogue.url(AUGREG) == catalogue.url(AUGREG + '.npz')
  wrong = {
    AUGREG.replace('medium1', 'mediun1'): AUGREG,
    AUGREG.replace('B_16', 'b16'): AUGREG,
    AUGREG.replace('-wd_0.1', ''): AUGREG,
    'augreg/R50_L_32-i21k': 'augreg/R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1',
    transfer.replace('res_384', 'res384'): transfer,
  }
  for name, meant in wrong.items():
    with pytest.raises(UserError, match='did you mean ' + re.escape(meant)):
      download.local_file(name)


@pytest.mark.parametrize(
  ('source', 'said'),
  [
    ('ViT-B_16', 'did you mean imagenet21k/ViT-B_16'),
    ('imagenet21/ViT-B_16', 'did you mean imagenet21k/ViT-B_16'),
    ('runs/nothing', 'There is no checkpoint runs/nothing'),
  ],
)
def test_what_is_nowhere(server, monkeypatch, tmp_path, source, said):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=said):
    formats.read(source)
  assert not server.requests


def test_a_file_beside_it_is_offered(tmp_path):
  (tmp_path / 'model.npz').touch()
  with pytest.raises(UserError, match=r'did you mean .*model\.npz'):
    formats.read(tmp_path / 'modell.npz')
