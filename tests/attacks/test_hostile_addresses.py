"""Web pages instead of files, redirects to anywhere, addresses that are none: the file or one sentence."""

import re

import pytest
from hostile_server import PATIENCE, SHORT, A, Request, archive, get, refusal

from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import download

LOGIN = b'\n <!DOCTYPE html><html><body>Please log in</body></html>' + b' ' * 1000


# What is no file of the kind.


@pytest.mark.parametrize('kind', ['checkpoint', 'json', 'text'])
@pytest.mark.parametrize('page', [LOGIN, b'\xef\xbb\xbf<html>', b'<?xml version="1.0"?><Error/>'])
def test_a_web_page_is_no_file(server, tmp_path, kind, page):
  server.behave = lambda request: request.send(200, page, ETag='"1"', Content_Type='text/html')
  assert re.search('is a web page, not a .*; look at http', refusal(tmp_path, server.url(), kind))
  server.behave = lambda request: request.send_range(A, '"2"')
  assert get(server.url()) == A


NO_CHECKPOINTS = {
  'empty': b'',
  'json': b'{"error": "rate limited"}',
  'the start of a zip': A[:5000],
  'a safetensors header of exabytes': b'\xff' * 8 + b'{' * 5000,
  'zeros': bytes(5000),
  'a pickle': b'\x80\x04\x95',
}


@pytest.mark.parametrize('content', NO_CHECKPOINTS.values(), ids=NO_CHECKPOINTS)
def test_what_is_no_checkpoint_is_refused(server, tmp_path, content):
  server.behave = lambda request: request.send(200, content)
  sentence = refusal(tmp_path, server.url())
  assert re.search(r'is empty|is not a checkpoint \(it begins with|is a damaged \.npz', sentence)


# Redirects.


@pytest.mark.parametrize('status', [301, 302, 303, 307, 308])
def test_a_redirect_is_followed_also_when_resuming(server, status):
  def behave(request: Request) -> None:
    if request.path == '/model.npz':
      request.send(status, Location='files/1?sign=%2F')
    else:
      request.send_range(A, until=None if request.first else 1000)

  server.behave = behave
  assert get(server.url()) == A
  assert server.requests[-1].path == '/files/1?sign=%2F'
  assert server.ranges()[-1] == 'bytes=1000-'


@pytest.mark.parametrize('loop', ['/model.npz', '//localhost:{port}/there'])
def test_a_loop_of_redirects_ends(server, tmp_path, loop):
  loop = loop.format(port=server.server_port)
  server.behave = lambda request: request.send(302, Location=f'{loop}?{request.number}')
  assert 'redirects more than 10 times' in refusal(tmp_path, server.url())
  assert len(server.requests) == 11


@pytest.mark.parametrize('target', ['file:///etc/passwd', 'data:,x', 'http://[', 'http://localhost:99999/'])
def test_a_redirect_to_no_web_address_is_refused(server, tmp_path, target):
  server.behave = lambda request: request.send(302, Location=target)
  assert re.search('which is not https|not a valid address', refusal(tmp_path, server.url()))
  assert len(server.requests) == 1


@pytest.mark.parametrize('status', [300, 302, 304])
def test_a_redirect_to_nowhere_is_refused(server, tmp_path, status):
  server.behave = lambda request: request.send(status)
  assert f'answers {status}' in refusal(tmp_path, server.url())


def test_the_endless_body_of_a_redirect_is_not_read(server):
  def behave(request: Request) -> None:
    if request.path == '/model.npz':
      request.send(302, Location='/there', Content_Length=None)
      request.drip(bytes(100_000), 0.001)
    else:
      request.send_range(A)

  server.behave = behave
  assert get(server.url()) == A
  assert len(server.requests) == 2


# Addresses and names.


def test_an_address_with_a_hostile_path_stays_in_the_cache(server, tmp_path):
  """Every one is a file of its own, below the cache and with a short, plain name."""
  paths = [
    '/' + 'n' * 300 + '.npz',
    '/a%00b.npz',
    '/..%2F..%2F..%2Fetc%2Fpasswd',
    '/%2e%2e/%2e%2e/x.npz',
    '/.lock',
    '/',
    '',
    '/a',
    '/a?x=1',
    '/a?x=2',
    '/%0d%0aHost:%20evil',
    '/a b.npz',
    '/Blüte.npz',
    '/%ff%fe.npz',
    '/x\\..\\y.npz',
    '/$(touch x).npz',
  ]
  server.behave = lambda request: request.send(200, archive(request.path.encode()), ETag='"1"')
  cache = tmp_path / 'cache/vit_jax/downloads'
  found = {}
  for path in [*paths, *paths]:
    file = download.local_file(server.url(path), patience=PATIENCE)
    assert file.resolve().is_relative_to(cache)
    assert re.fullmatch(r'[A-Za-z0-9_+=-][A-Za-z0-9._+=-]{0,119}', file.name)
    assert found.setdefault(path, file) == file
  assert len(set(found.values())) == len(paths) == len(server.requests)
  assert found['/a?x=1'].read_bytes() == archive(b'/a?x=1')
  assert found['/' + 'n' * 300 + '.npz'].name.endswith('n.npz')


@pytest.mark.parametrize(
  'address',
  [
    'http://',
    'http://[::1/x.npz',
    'http://localhost:99999/x.npz',
    'http://' + 'a' * 300 + '/x.npz',
    'http://\udcff/x.npz',
    'http://local host/x.npz',
    'http://localhost\r\nX: 1/x.npz',
  ],
)
def test_an_address_that_is_none_is_one_sentence(server, tmp_path, address):
  with pytest.raises(UserError) as error:
    download.local_file(address, patience=SHORT)
  assert str(error.value).endswith('.')
  assert not server.requests
