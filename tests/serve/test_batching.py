"""Batches, admission and refusals of the service, on a model of a few lines whose pace the test decides."""

import asyncio
import json
import threading

import numpy as np
import pytest
from serving import FORM, form, photo

from vit_jax.serve import batching
from vit_jax.serve.app import Service
from vit_jax.serve.batching import Batcher
from vit_jax.serve.photos import Limits
from vit_jax.serve.served import Served


class Means:
  """Gives the mean of each image, as its only embedding; waits for `gate` where there are images."""

  def __init__(self):
    absent = {'probabilities': 'It has no head.', 'attention': 'It has none.'}
    functions, example = {'embeddings': self.embeddings}, np.zeros((4, 4, 3), np.float32)
    self.served = Served('means', 'a mean', 3, self.prepare, example, functions, absent, 0, None, 4)
    self.gate = threading.Event()
    self.gate.set()
    self.sizes: list[int] = []

  def prepare(self, pixels: np.ndarray) -> np.ndarray:
    return np.float32(pixels[:4, :4])

  def embeddings(self, images: np.ndarray) -> np.ndarray:
    self.sizes.append(len(images))
    if images.any():
      self.gate.wait()
    return images.mean(axis=(1, 2, 3))[:, None]


async def ask(service: Service, path: str, body: bytes = b'', kind: str = FORM) -> tuple[int, dict, dict]:
  """(status, headers, JSON) of a request, without a server."""
  sent: list = []

  async def receive() -> dict:
    return {'type': 'http.request', 'body': body}

  async def send(message) -> None:
    sent.append(message)

  headers = [(b'content-type', kind.encode())]
  scope = {
    'type': 'http',
    'method': 'POST' if body else 'GET',
    'path': path,
    'headers': headers,
    'query_string': b'',
  }
  await service(scope, receive, send)
  names = {name.decode(): value.decode() for name, value in sent[0]['headers']}
  return sent[0]['status'], names, json.loads(b''.join(part['body'] for part in sent[1:]))


def test_sizes_are_powers_of_two_and_the_largest():
  assert batching.sizes_up_to(1) == [1] and batching.sizes_up_to(8) == [1, 2, 4, 8]
  assert batching.sizes_up_to(12) == [1, 2, 4, 8, 12]


@pytest.mark.parametrize(
  ('seconds_of', 'expected'),
  [(lambda size: 0.001 * size, [4, 1]), (lambda size: 0.001 + 1e-6 * size, [8])],
  ids=['processor', 'accelerator'],
)
def test_five_images_are_computed_in_the_way_that_is_quickest(seconds_of, expected, monkeypatch):
  model = Means()
  batcher = Batcher(model.served.functions, model.served.example, 8, delay=60)
  monkeypatch.setattr(batching.time, 'monotonic', lambda: 0.0)
  batcher.start()
  assert model.sizes == [1, 1, 2, 2, 4, 4, 8, 8]  # compiled, then measured
  batcher._seconds.update({size: seconds_of(size) for size in batcher.sizes})
  images = np.random.default_rng(0).uniform(1, 2, (5, 4, 4, 3)).astype(np.float32)
  answers = [batcher.submit('embeddings', image) for image in images]
  batcher.close()  # answers all, though their minute has not passed
  assert model.sizes[8:] == expected
  np.testing.assert_allclose(
    [answer.result()[0] for answer in answers], images.mean(axis=(1, 2, 3)), rtol=1e-6
  )


def test_a_batch_that_fails_fails_its_images_and_no_others():
  def function(images: np.ndarray) -> np.ndarray:
    if images.max() > 1:
      raise RuntimeError('out of memory')
    return images[:, 0, 0]

  batcher = Batcher({'first': function}, np.zeros((1, 1, 1), np.float32), 1, delay=0)
  batcher.start()
  answers = [batcher.submit('first', np.full((1, 1, 1), value, np.float32)) for value in (0.5, 2.0, 0.25)]
  batcher.close()
  assert answers[0].result() == 0.5 and answers[2].result() == 0.25
  with pytest.raises(RuntimeError, match='out of memory'):
    answers[1].result()


def test_service_says_when_it_is_not_ready_full_or_stopping():
  async def story() -> None:
    model = Means()
    service = Service(model.served, Limits(waiting=3, seconds=5), batch_size=2, delay=0)
    body = form([photo(0)])
    status, _, said = await ask(service, '/health')
    assert (status, said['status']) == (503, 'compiling')
    status, headers, said = await ask(service, '/embed', body)
    assert (status, headers['retry-after']) == (503, '5') and said['error'].startswith(
      'The model is being compiled'
    )
    service.compile()
    assert (await ask(service, '/predict', body))[::2] == (400, {'error': 'It has no head.'})
    assert (await ask(service, '/attention', body))[::2] == (400, {'error': 'It has none.'})
    model.gate.clear()
    waiting = [asyncio.create_task(ask(service, '/embed', form([photo(0), photo(1)])))]
    while not service._admitted:
      await asyncio.sleep(0.01)
    waiting.append(asyncio.create_task(ask(service, '/embed', body)))
    while service._admitted < 3:
      await asyncio.sleep(0.01)
    status, headers, said = await ask(service, '/embed', body)
    assert (
      status == 429 and int(headers['retry-after']) >= 1 and said['error'].startswith('Too many photos wait')
    )
    service.stopping = True
    model.gate.set()
    for task in waiting:
      status, headers, _ = await task
      assert (status, headers['connection']) == (200, 'close')
    assert (await ask(service, '/health'))[2]['status'] == 'stopping'
    service.close()

  asyncio.run(story())


def test_image_whose_answer_nobody_waits_for_any_more_does_not_stop_the_others():
  model = Means()
  batcher = Batcher({'embeddings': model.embeddings}, model.served.example, 4, 0.2)
  batcher.start()
  image = np.ones_like(model.served.example)
  assert batcher.submit('embeddings', image).cancel()
  assert batcher.submit('embeddings', image).result(5) == 1
  batcher.close()
