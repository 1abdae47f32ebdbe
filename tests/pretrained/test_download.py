"""Downloads from a local server that behaves: whole, broken off, resumed, refused.

Servers that do not behave are in tests/attacks/test_hostile_server.py.
"""

import contextlib
import http.server
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import zipfile

import numpy as np
import pytest
from processes import HUNG, wait_until
from released_files import logits, path, tensors

from vit_jax.foundation import buckets
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import catalogue, class_names, download
from vit_jax.pretrained.http_download import Patience

PATIENCE = Patience(timeout=10, pause=0)


def archive(content: bytes) -> bytes:
  """An .npz with these bytes in it."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w') as archive:
    archive.writestr(zipfile.ZipInfo('weights.npy'), content)  # of a fixed date: the same bytes each time
  return file.getvalue()


CONTENT = archive(bytes(range(256)) * 40_000)  # 10 MB


class Server(http.server.ThreadingHTTPServer):
  """Serves `files`; `break_after` bytes it closes the connection, as often as `breaks` says."""

  daemon_threads = True

  def __init__(self):
    super().__init__(('localhost', 0), Handler)
    self.files = {'/vit_models/imagenet21k/ViT-B_16.npz': CONTENT}
    self.ranges, self.etag = True, '"1"'
    self.break_after, self.breaks = None, 0
    self.statuses = []  # of the next answers; 200 after them
    self.pause = 0  # seconds before the last byte
    self.requests = []  # the Range of each, or None

  def url(self, path: str = '/vit_models/imagenet21k/ViT-B_16.npz') -> str:
    return f'http://localhost:{self.server_port}{path}'


class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    server = self.server
    asked = self.headers.get('Range')
    server.requests.append(asked)
    content = server.files.get(self.path)
    status = server.statuses.pop(0) if server.statuses else 200
    if content is None:
      status = 404
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
    self.send_header('Content-Length', str(len(content) - first))
    if server.etag:
      self.send_header('ETag', server.etag)
    self.end_headers()
    last = len(content)
    if server.breaks:
      server.breaks -= 1
      last = first + server.break_after
    with contextlib.suppress(ConnectionError):
      self.wfile.write(content[first : last - 1])
      self.wfile.flush()
      time.sleep(server.pause)
      self.wfile.write(content[last - 1 : last])

  def log_message(self, *_):
    pass


@pytest.fixture
def server(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  server = Server()
  monkeypatch.setattr(catalogue, 'BUCKETS_URL', f'http://localhost:{server.server_port}/')
  threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
  yield server
  server.shutdown()
  server.server_close()


def local_file(source, kind='checkpoint'):
  return download.local_file(source, kind, PATIENCE)


def partial_files(tmp_path):
  return list(tmp_path.rglob('*.partial'))


def test_a_file_is_downloaded_whole_and_only_once(server, tmp_path):
  file = local_file(server.url())
  assert file.read_bytes() == CONTENT
  assert file.is_relative_to(tmp_path / 'cache' / 'vit_jax') and file.name == 'ViT-B_16.npz'
  assert local_file(server.url()) == file
  assert server.requests == [None]
  assert not partial_files(tmp_path)


@pytest.mark.parametrize('source', ['imagenet21k/ViT-B_16', 'gs://vit_models/imagenet21k/ViT-B_16.npz'])
def test_published_names_and_buckets_are_public_addresses(server, source):
  assert local_file(source).read_bytes() == CONTENT


def test_without_the_extra_a_public_file_of_a_bucket_loads_and_another_names_it(server, monkeypatch):
  monkeypatch.setattr(buckets, 'is_installed', lambda _: False)
  server.files['/mine/a.npz'] = CONTENT
  assert local_file('gs://mine/a.npz').read_bytes() == CONTENT
  with pytest.raises(UserError, match=r"no public file gs://mine/b.npz .* pip install 'vit_jax\[gcs\]'"):
    local_file('gs://mine/b.npz')


@pytest.mark.parametrize('source', ['sam/ViT-B_32', 'gs://vit_models/sam/ViT-B_32.npz'])
def test_a_model_loads_from_the_network(server, golden, source):
  server.files['/vit_models/sam/ViT-B_32.npz'] = path(golden, 'a_vit_token').read_bytes()
  server.break_after, server.breaks = 70_000, 1
  io = tensors(golden / 'a_vit_token.io.npz')
  for _ in range(2):
    np.testing.assert_allclose(logits(source, io['images']), io['logits'], rtol=0, atol=1e-5)
  assert server.requests == [None, 'bytes=70000-']


def test_a_plus_in_a_name_is_quoted(server):
  server.files['/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz'] = archive(b'hybrid')
  file = local_file('imagenet21k+imagenet2012/R50+ViT-B_16')
  assert file.read_bytes() == archive(b'hybrid')
  assert file.name == 'R50+ViT-B_16.npz'


def test_a_query_is_part_of_the_address(server):
  for letter in 'AB':
    server.files[f'/download?file={letter}.npz'] = archive(letter.encode())
  for letter in 'ABAB':
    file = local_file(server.url(f'/download?file={letter}.npz'))
    assert file.read_bytes() == archive(letter.encode())
    assert file.name == f'{letter}.npz'
  assert len(server.requests) == 2


@pytest.mark.parametrize('query', ['', '?download=true', '?download=true&file=other.npz'])
def test_a_safetensors_file_keeps_its_suffix(server, query):
  server.files['/model.safetensors' + query] = (2).to_bytes(8, 'little') + b'{}'
  assert local_file(server.url('/model.safetensors' + query)).name == 'model.safetensors'


def test_the_next_call_resumes_what_an_earlier_one_kept(server, tmp_path):
  server.break_after, server.breaks = 1_000_000, 99
  with pytest.raises(UserError, match=r'after 5,000,000 bytes, which are kept: the same again') as error:
    local_file(server.url())
  assert '\n' not in str(error.value)
  assert partial_files(tmp_path)
  server.breaks = 0
  assert local_file(server.url()).read_bytes() == CONTENT
  assert server.requests[-1] == 'bytes=5000000-'
  assert not partial_files(tmp_path)


def test_what_cannot_be_resumed_is_not_said_to_be_kept(server, tmp_path):
  server.etag, server.break_after, server.breaks = None, 3_000_000, 99
  with pytest.raises(UserError, match=r'broke off .*; check the network, or give a local path') as error:
    local_file(server.url())
  assert 'kept' not in str(error.value)
  assert not partial_files(tmp_path)


def test_a_cached_file_of_another_size_is_fetched_again(server):
  file = local_file(server.url())
  file.write_bytes(CONTENT[:-1])
  assert local_file(server.url()).read_bytes() == CONTENT
  assert len(server.requests) == 2


def test_a_cached_file_needs_neither_network_nor_a_writable_cache(server):
  file = local_file(server.url())
  server.shutdown()
  server.server_close()
  file.with_name('.lock').unlink(missing_ok=True)
  file.parent.chmod(0o500)
  assert local_file(server.url()) == file
  assert not file.with_name('.lock').exists()


@pytest.mark.parametrize('place', ['/dev/null', '/proc/nowhere'])
def test_a_cache_that_cannot_be_written_is_named(server, monkeypatch, place):
  monkeypatch.setenv('XDG_CACHE_HOME', place)
  with pytest.raises(UserError, match=rf'cannot be kept in the cache \(.*{place}.*set XDG_CACHE_HOME'):
    local_file(server.url())


def test_a_disk_without_room_is_named_before_the_transfer(server, monkeypatch):
  monkeypatch.setattr(shutil, 'disk_usage', lambda _: types.SimpleNamespace(free=5_000_000))
  with pytest.raises(UserError, match=r'10,240,[0-9]{3} bytes are missing and 5,000,000 are free.*make room'):
    local_file(server.url())


def test_a_missing_file_offers_the_nearest_name(server):
  with pytest.raises(UserError, match=r'no public file imagenet21k/ViT-B_61 .*404.*imagenet21k/ViT-B_16'):
    local_file('imagenet21k/ViT-B_61')
  assert len(server.requests) == 1


PUBLISHED = ['imagenet21k/ViT-B_16', 'imagenet21k/ViT-B_16.npz', 'augreg/B_16', 'bit/distill/R50x1_224']


@pytest.mark.parametrize('network', [True, False])
@pytest.mark.parametrize('name', PUBLISHED)
def test_a_published_name_that_does_not_come_offers_no_other(server, name, network):
  server.files = {}
  if not network:
    server.shutdown()
    server.server_close()
  said = 'no public file {} .*404' if network else r'{} .*cannot be reached \(.*give a local path\.$'
  with pytest.raises(UserError, match=said.format(name)) as error:
    local_file(name)
  assert 'perhaps' not in str(error.value)


def test_an_unknown_name_without_a_network_offers_the_nearest(server):
  server.shutdown()
  server.server_close()
  with pytest.raises(UserError, match=r'cannot be reached .*give a local path; perhaps .*ViT-L_16'):
    local_file('imagenet21k/ViT-L_61')


def test_a_refusal_is_not_asked_again(server):
  server.statuses = [403]
  with pytest.raises(UserError, match=r'There is no public file .* answers 403'):
    local_file(server.url())
  server.statuses = [401]
  with pytest.raises(UserError, match=r'cannot be downloaded .*: the server answers 401; check the address'):
    local_file(server.url())
  assert len(server.requests) == 2


@pytest.mark.parametrize('status', [500, 503, 429, 408])
def test_a_passing_failure_of_the_server_is_asked_again(server, status):
  server.statuses = [status] * 4
  assert local_file(server.url()).read_bytes() == CONTENT
  assert len(server.requests) == 5


def test_a_lasting_failure_of_the_server_is_named(server):
  server.statuses = [503] * 5
  with pytest.raises(UserError, match='the server answers 503; check the network, or give a local path'):
    local_file(server.url())
  assert len(server.requests) == 5


def test_the_proxy_of_the_environment_is_used(server, monkeypatch):
  server.files['http://example.invalid/model.npz'] = archive(b'by proxy')
  monkeypatch.setenv('http_proxy', f'localhost:{server.server_port}')
  monkeypatch.setenv('no_proxy', '')
  assert local_file('http://example.invalid/model.npz').read_bytes() == archive(b'by proxy')


def test_a_host_without_proxy_is_asked_directly(server, monkeypatch):
  monkeypatch.setenv('http_proxy', 'localhost:1')
  monkeypatch.setenv('no_proxy', 'localhost')
  assert local_file(server.url()).read_bytes() == CONTENT


def test_class_names_come_from_an_address(server):
  server.files['/names.txt'] = 'Katze\nBlüte\n'.encode()
  assert class_names.read(server.url('/names.txt'), 2) == ('Katze', 'Blüte')


CHILD = 'import sys; from vit_jax.pretrained import download; print(download.local_file(sys.argv[1]))'


def start_child(url, tmp_path) -> subprocess.Popen:
  environment = os.environ | {'XDG_CACHE_HOME': str(tmp_path / 'cache')}
  return subprocess.Popen(
    [sys.executable, '-c', CHILD, url], env=environment, stdout=subprocess.PIPE, text=True
  )


def test_two_processes_download_once(server, tmp_path):
  server.pause = 3
  children = [start_child(server.url(), tmp_path) for _ in range(2)]
  files = [child.communicate(timeout=HUNG)[0].strip() for child in children]
  assert files[0] == files[1]
  assert pathlib.Path(files[0]).read_bytes() == CONTENT
  assert server.requests == [None]


def test_a_killed_process_leaves_no_lock_and_its_bytes(server, tmp_path):
  server.pause = 60
  child = start_child(server.url(), tmp_path)
  wait_until(lambda: any(file.stat().st_size > 5_000_000 for file in partial_files(tmp_path)))
  child.send_signal(signal.SIGKILL)
  child.communicate(timeout=HUNG)
  server.pause = 0
  kept = partial_files(tmp_path)[0].stat().st_size
  assert local_file(server.url()).read_bytes() == CONTENT
  assert server.requests == [None, f'bytes={kept}-']
