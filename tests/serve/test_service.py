"""`vit_jax serve` in a process of its own, over real connections."""

import base64
import concurrent.futures
import contextlib
import http.client
import io
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import hostile_requests
import numpy as np
import pytest
from commands import assert_said
from fork_server import ROOT, run
from PIL import Image
from processes import wait_until
from released_files import path as released_file
from serving import Running, form, photo, read_answer, request, running

import vit_jax
from vit_jax.cli import COMMANDS

PHOTOS = [photo(seed) for seed in range(24)]
MEBIBYTE = 2**20


@pytest.fixture(scope='module')
def checkpoint(golden) -> pathlib.Path:
  return released_file(golden, 'a_vit_token')


@pytest.fixture(scope='module')
def service(checkpoint, tmp_path_factory):
  flags = ['--max_megabytes=1', '--max_megapixels=1', '--timeout=5', '--batch_size=4']
  with running(checkpoint, *flags, folder=tmp_path_factory.mktemp('service')) as started:
    yield started


@pytest.fixture(scope='module')
def loaded(checkpoint):
  """(probabilities, embeddings) of PHOTOS by `vit_jax.load`, the softmax in NumPy and float64."""
  model = vit_jax.load(checkpoint)
  images = model.preprocess([np.asarray(Image.open(io.BytesIO(content))) for content in PHOTOS])
  powers = np.exp(np.asarray(model(images), np.float64))
  return powers / powers.sum(axis=1, keepdims=True), np.asarray(model.embeddings(images))


@pytest.mark.slow
def test_photos_get_the_classes_and_embeddings_of_load_whoever_asks_at_the_same_time(
  service: Running, loaded
):
  def ask(number: int) -> None:
    chosen = [(number + step) % len(PHOTOS) for step in range(1 + number % 3)]
    body, kind = form([PHOTOS[each] for each in chosen]), None
    if number % 2:
      body, kind = (
        json.dumps({'images': [base64.b64encode(PHOTOS[each]).decode() for each in chosen]}).encode(),
        1,
      )
    kinds = {'kind': 'application/json'} if kind else {}
    predicted = service.ask('/predict?top=3', body, **kinds)
    embedded = service.ask('/embed', body, **kinds)
    assert (predicted.status, embedded.status, len(predicted.content)) == (200, 200, len(chosen))
    for each, prediction, embedding in zip(chosen, predicted.content, embedded.content, strict=True):
      best = np.argsort(-loaded[0][each])[:3]
      assert [found['class'] for found in prediction['predictions']] == best.tolist()
      found = [found['probability'] for found in prediction['predictions']]
      np.testing.assert_allclose(found, loaded[0][each][best], atol=1e-5)
      np.testing.assert_allclose(embedding['embedding'], loaded[1][each], atol=1e-4)

  with concurrent.futures.ThreadPoolExecutor(12) as clients:
    list(clients.map(ask, range(48)))
  assert service.metric('vit_jax_batch_images_sum') == 2 * sum(1 + number % 3 for number in range(48))
  assert service.metric('vit_jax_waiting_images') == 0


@pytest.mark.slow
def test_answer_is_what_predict_prints(service: Running, checkpoint, tmp_path):
  (tmp_path / '0.png').write_bytes(PHOTOS[0])
  printed = run(
    'vit_jax.predict', f'--checkpoint={checkpoint}', '--format=json', '0.png', cwd=tmp_path
  ).stdout
  (ours,), (theirs,) = service.ask('/predict', form(PHOTOS[:1])).content, json.loads(printed)
  assert ours.keys() == theirs.keys() and ours['image'] == theirs['image']
  for own, other in zip(ours['predictions'], theirs['predictions'], strict=True):
    assert own == other | {'probability': pytest.approx(other['probability'], abs=1e-5)}


@pytest.mark.nightly(but='onnx')
@pytest.mark.slow
@pytest.mark.parametrize('flags', ['--format=onnx', '--format=stablehlo --outputs=probabilities,embeddings'])
def test_exported_model_is_served_as_its_checkpoint(flags, checkpoint, loaded, tmp_path):
  pytest.importorskip('onnxruntime')
  assert run('vit_jax.export', str(checkpoint), 'out', *flags.split(), cwd=tmp_path).returncode == 0
  with running('out', folder=tmp_path) as service:
    sizes = re.search('batches of (.*) images', service.log.read_text())[1]
    assert sizes == ('1' if flags == '--format=onnx' else '1, 2, 4, 8')
    answer = service.ask('/predict?top=10', form(PHOTOS[:5])).content
    for predicted, expected in zip(answer, loaded[0], strict=False):
      shares = {found['class']: found['probability'] for found in predicted['predictions']}
      np.testing.assert_allclose([shares[number] for number in range(10)], expected, atol=1e-4)
    embedded = service.ask('/embed', form(PHOTOS[:1]))
    if 'embeddings' in flags:
      np.testing.assert_allclose(embedded.content[0]['embedding'], loaded[1][0], atol=1e-3)
    else:
      assert (embedded.status, 'out was exported without embeddings' in embedded.content['error']) == (
        400,
        True,
      )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('path', 'body', 'kind', 'status', 'said'),
  [
    ('/predict', b'x', 'text/plain', 415, 'Send photos as files of a form'),
    ('/predict', form([]), None, 400, 'There is no photo in the request'),
    ('/predict', form([b'nonsense']), None, 400, '0.png is no image of a known kind; send one of JPEG, PNG'),
    ('/predict', form([PHOTOS[0], PHOTOS[0][:90]]), None, 400, '1.png cannot be decoded'),
    (
      '/predict',
      form([photo(0, size=(1001, 1000))]),
      None,
      413,
      '1,001,000 pixels, and 1,000,000 are the most',
    ),
    ('/predict', form([photo(0, 'eps')]), None, 400, 'no image of a known kind'),
    ('/predict', form(PHOTOS[:1])[:-20], None, 400, 'The form is cut off'),
    ('/predict', b'x' * (MEBIBYTE + 1), None, 413, 'A request may have 1,048,576 bytes'),
    ('/predict?top=0', form(PHOTOS[:1]), None, 400, 'top=0 is no number of classes'),
    ('/embed', b'{"image": "x"}', 'application/json', 400, 'The JSON is not {"images": [base64, …]}'),
    ('/embed', b'{"images": ["?"]}', 'application/json', 400, 'images[0] is not base64'),
    ('/attention', form(PHOTOS[:2]), None, 400, '/attention takes one photo, and these are 2'),
    ('/nothing', b'x', None, 404, 'There is nothing at this path'),
    ('/metrics', b'x', None, 405, 'POST is not answered here'),
  ],
)
def test_bad_request_is_refused_in_one_sentence(service: Running, path, body, kind, status, said):
  answer = service.ask(path, body, **({} if kind is None else {'kind': kind}))
  assert (answer.status, list(answer.content)) == (status, ['error'])
  sentence = answer.content['error']
  assert said in sentence and sentence.endswith('.') and '\n' not in sentence


@pytest.mark.nightly
@pytest.mark.slow
def test_malformed_huge_slow_and_cut_off_requests_are_no_failure_and_take_no_memory(service: Running):
  def attack(seed: int) -> tuple[str, int | None]:
    chosen = hostile_requests.of(seed, MEBIBYTE)
    with service.connect() as connection, contextlib.suppress(OSError, http.client.HTTPException):
      with contextlib.suppress(BrokenPipeError):  # it has answered already
        for part in chosen.parts:
          connection.sendall(part)
          time.sleep(chosen.pause)
        if chosen.leaves:
          connection.shutdown(socket.SHUT_WR)
      response = http.client.HTTPResponse(connection)
      response.begin()
      content = read_answer(response).content
      if response.status >= 400 and isinstance(content, dict):
        assert content['error'].endswith('.') and '\n' not in content['error'], (seed, content)
      return chosen.name, response.status
    return chosen.name, None  # the service has closed the connection

  before = service.ask('/predict', form(PHOTOS[:1]))
  memory, answers = [], []
  with concurrent.futures.ThreadPoolExecutor(24) as clients:
    for half in (range(250), range(250, 500)):
      answers += clients.map(attack, half)
      memory.append(service.metric('process_resident_memory_bytes'))
  assert service.ask('/predict', form(PHOTOS[:1])).content == before.content
  statuses = {status for _, status in answers}
  assert statuses <= {None, 200, 400, 404, 405, 408, 413, 415}, answers
  assert statuses >= {None, 200, 400, 408, 413, 415}
  assert memory[1] - memory[0] < 48 * MEBIBYTE
  assert service.metric('vit_jax_waiting_images') == 0


@pytest.mark.slow
def test_sigterm_loses_no_request_that_was_sent(checkpoint, tmp_path):
  """Whoever sent a whole request before the signal gets an answer; so does one whose body comes afterwards."""
  answered, lost, waiting, signalled = [], [], set(), threading.Event()

  def ask(service: Running, seed: int) -> None:
    while not signalled.is_set():
      with contextlib.suppress(ConnectionRefusedError), service.connect() as connection:
        connection.sendall(request(form([PHOTOS[seed % 24]])))
        waiting.add(seed)
        sent_before = not signalled.is_set()
        try:
          response = http.client.HTTPResponse(connection)
          response.begin()
          answered.append(read_answer(response).status)
          waiting.remove(seed)
        except (OSError, http.client.HTTPException) as error:
          lost.extend([error] * sent_before)

  with running(checkpoint, '--batch_size=2', folder=tmp_path) as service, service.connect() as late:
    sound = request(form([PHOTOS[0]]))
    late.sendall(sound[:-100])
    clients = [threading.Thread(target=ask, args=(service, seed)) for seed in range(32)]
    for each in clients[:16]:
      each.start()
    wait_until(lambda: len(answered) > 50)
    service.command.send_signal(signal.SIGSTOP)  # further connections wait in the kernel, as where it is busy
    for each in clients[16:]:
      each.start()
    wait_until(lambda: len(waiting) == 32)
    signalled.set()
    service.command.send_signal(signal.SIGTERM)
    service.command.send_signal(signal.SIGCONT)
    wait_until(lambda: 'Stopping' in service.log.read_text())
    late.sendall(sound[-100:])
    response = http.client.HTTPResponse(late)
    response.begin()
    assert (response.status, response.headers['connection']) == (200, 'close')
    late.close()
    for each in clients:
      each.join()
    assert service.command.wait() == 0
  assert not lost and set(answered) == {200} and len(answered) >= 50 + 32


@pytest.mark.slow
def test_openapi_has_every_path_and_answers_are_as_it_says(service: Running):
  jsonschema = pytest.importorskip('jsonschema')
  paths = service.ask('/openapi.json').content['paths']
  text = service.ask('/nothing').content['error']
  assert set(paths) == set(re.findall(r'/[a-z.]*(?=[,.])', text.partition('ask ')[2]))
  for path, methods in paths.items():
    for method, said in methods.items():
      answer = service.ask(path, form(PHOTOS[:1]) if method == 'post' else None)
      ((kind, content),) = said['responses']['200']['content'].items()
      assert answer.status == 200 and answer.headers['content-type'].startswith(kind)
      if kind == 'application/json':
        jsonschema.validate(answer.content, content['schema'])


@pytest.mark.slow
def test_lines_of_curl_in_the_documentation_do_what_it_says(service: Running, tmp_path):
  if shutil.which('curl') is None:
    pytest.skip('there is no curl')
  for name in ('photo.jpg', 'other.jpg'):
    (tmp_path / name).write_bytes(photo(0, 'jpeg'))
  (block,) = re.findall(r'```sh\n((?:curl|printf).*?)```', (ROOT / 'docs/serving.md').read_text(), re.DOTALL)
  script = block.replace('127.0.0.1:8000', f'127.0.0.1:{service.port}').replace(
    'curl ', 'curl --silent --fail '
  )
  lines = subprocess.run(['bash', '-ec', script], cwd=tmp_path, capture_output=True, text=True, check=True)
  assert lines.stdout.count('"probability"') == 5 + 2 * 3 + 5 and lines.stdout.count('"embedding"') == 1
  assert (tmp_path / 'attention.png').read_bytes()[1:4] == b'PNG' and '"ready"' in lines.stdout


@pytest.mark.slow
def test_photo_dropped_on_the_page_shows_its_classes_and_attention(service: Running, loaded):
  playwright = pytest.importorskip('playwright.sync_api')
  chromium = shutil.which('chromium') or shutil.which('google-chrome')
  if chromium is None:
    pytest.skip('there is no chromium')
  dropping = """([content, name]) => {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0)), files = new DataTransfer();
    files.items.add(new File([bytes], name, {type: 'image/png'}));
    document.querySelector('#drop').dispatchEvent(new DragEvent('drop', {dataTransfer: files, bubbles: true}));
  }"""
  with (
    playwright.sync_playwright() as browsers,
    browsers.chromium.launch(executable_path=chromium, args=['--no-sandbox']) as browser,
  ):
    page = browser.new_page(viewport={'width': 400, 'height': 800})
    outside: list[str] = []
    page.on('request', lambda sent: outside.append(sent.url) if f':{service.port}/' not in sent.url else None)
    page.goto(f'http://127.0.0.1:{service.port}/')
    page.get_by_text('10 classes').wait_for()
    for name, content in (('<b>.png', PHOTOS[3]), ('bad.png', b'nonsense')):
      page.evaluate(dropping, [base64.b64encode(content).decode(), name])
    page.get_by_text('bad.png is no image of a known kind').wait_for()
    playwright.expect(page.locator('meter')).to_have_count(5)
    best = [f'{share:.1f} %' for share in 100 * np.sort(loaded[0][3])[:-6:-1]]
    assert page.locator('.class span').all_inner_texts() == best
    page.get_by_role('button', name='Attention').click()
    page.locator('img.seen').wait_for()
    assert page.evaluate('document.documentElement.scrollWidth') <= 400
    assert [url for url in outside if not url.startswith('blob:')] == []


def test_missing_package_is_named_with_the_extra(tmp_path):
  script = "import sys; sys.modules['starlette'] = None; sys.argv = ['vit_jax', 'serve', 'x']; "
  script += 'from vit_jax import cli; cli.main()'
  ended = subprocess.run([sys.executable, '-c', script], cwd=tmp_path, capture_output=True, text=True)
  assert_said(ended, "vit_jax serve needs the package starlette: pip install 'vit_jax[serve]'.")


def test_port_that_is_taken_is_named(tmp_path):
  assert 'serve' in COMMANDS
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = taken.getsockname()[1]
    assert_said(run('vit_jax.serve', 'x', f'--port={port}', cwd=tmp_path), f'--port={port} cannot be served')
