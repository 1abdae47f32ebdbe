"""The service's endpoints: who is answered what, and who is asked to come again."""

import asyncio
import contextlib
import functools
import importlib.resources
import io
import time
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from vit_jax.data.opencv import decoding_threads
from vit_jax.data.prefetch import default_threads
from vit_jax.foundation import web_page
from vit_jax.serve import openapi
from vit_jax.serve.batching import Batcher
from vit_jax.serve.metrics import Metrics
from vit_jax.serve.photos import Limits, Photo, PhotoReader, prepared
from vit_jax.serve.served import Served

_TOP = 5  # classes of a photo, if nobody says
_QUIET = ('/health', '/metrics')  # asked for all the time
# Nothing but what the page itself holds, and answers of this service.
_POLICY = (
  "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src blob:; connect-src 'self'; "
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Service:
  """A model's endpoints, an ASGI application.

  Attributes:
    batcher: which runs the model.
    stopping: whether clients are asked to leave: each answer then closes its connection.
    answered: how many requests have been.
  """

  def __init__(self, model: Served, limits: Limits, batch_size: int, delay: float):
    """`batch_size`: images in a batch, at most; `delay`: seconds that an image waits for others, at most."""
    self._model, self._limits, self._ready = model, limits, False
    functions = {name: call for name, call in model.functions.items() if name != 'attention'}
    self.batcher = Batcher(functions, model.example, batch_size, delay, lambda *run: self._metrics.ran(*run))
    self._metrics = Metrics(lambda: self._admitted, self.batcher.sizes)
    self._reader, self._admitted = PhotoReader(limits), 0
    self._decoders = decoding_threads(default_threads(False))
    self._looking = asyncio.Lock()  # the attention of one photo is in memory at a time
    self.stopping, self.answered = False, 0
    posts = {'/predict': self._predict, '/embed': self._embed, '/attention': self._attention}
    gets = {'/': self._page, '/health': self._health, '/metrics': self._text, '/openapi.json': self._openapi}
    self._paths = {*posts, *gets}
    self._app = Starlette(
      routes=[
        *(Route(path, endpoint, methods=['POST']) for path, endpoint in posts.items()),
        *(Route(path, endpoint) for path, endpoint in gets.items()),
      ],
      exception_handlers={HTTPException: self._refuse, Exception: self._fail},
    )

  def compile(self) -> None:
    """Compiles the model for every size of a batch; until then photos are refused."""
    self.batcher.start()
    self._ready = True

  def close(self) -> None:
    """Ends the threads, when all has been answered."""
    self.batcher.close()
    self._decoders.shutdown()

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a request, counts it and says so in a line."""
    begin, status = time.monotonic(), 499  # the client has left, unless there is an answer

    async def answer(message: Message) -> None:
      nonlocal status
      if message['type'] == 'http.response.start':
        status = message['status']
        if self.stopping:
          message['headers'] = [*message['headers'], (b'connection', b'close')]
      await send(message)

    try:
      with contextlib.suppress(ClientDisconnect):
        await self._app(scope, receive, answer)
    finally:
      seconds, path = time.monotonic() - begin, scope['path'] if scope['path'] in self._paths else 'other'
      self._metrics.answered(path, status, seconds)
      self.answered += 1
      if path not in _QUIET:
        with contextlib.suppress(OSError):  # of a full disk: the answer has been sent
          print(f'{scope["method"]} {path} {status} {1000 * seconds:.0f} ms', flush=True)

  async def _predict(self, request: Request) -> Response:
    """The most probable classes, as `vit_jax predict --format=json` prints them."""
    top, names = self._top(request), self._model.class_names
    photos, rows = await self._run('probabilities', request)
    answers = []
    for photo, row in zip(photos, rows, strict=True):
      best = np.argsort(-row, kind='stable')[:top].tolist()
      answers.append(
        {
          'image': photo,
          'predictions': [
            {'class': number, 'name': names[number] if names else None, 'probability': float(row[number])}
            for number in best
          ],
        }
      )
    return JSONResponse(answers)

  async def _embed(self, request: Request) -> Response:
    photos, rows = await self._run('embeddings', request)
    return JSONResponse(
      [{'image': photo, 'embedding': row.tolist()} for photo, row in zip(photos, rows, strict=True)]
    )

  async def _attention(self, request: Request) -> Response:
    self._check_open('attention')
    async with self._reader.photos(request) as photos:
      if len(photos) > 1:
        raise HTTPException(
          400, f'/attention takes one photo, and these are {len(photos)}; send them one by one.'
        )
      with self._admit(1):
        (image,) = await self._decoded(photos)
        async with self._looking:
          picture = await asyncio.to_thread(self._model.functions['attention'], image)
    file = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture).save(file, 'png')
    return Response(file.getvalue(), media_type='image/png')

  async def _page(self, request: Request) -> Response:
    body = importlib.resources.files('vit_jax.serve').joinpath('page.html').read_text('utf-8')
    text = web_page.document(self._model.name, body)
    return HTMLResponse(text, headers={'Content-Security-Policy': _POLICY})

  async def _health(self, request: Request) -> Response:
    """What the service is; 503 as long as it should get no photos."""
    status = 'stopping' if self.stopping else 'ready' if self._ready else 'compiling'
    content = {
      'status': status,
      'name': self._model.name,
      'model': self._model.description,
      'classes': self._model.num_classes,
      'attention': 'attention' in self._model.functions,
    }
    return JSONResponse(content, 200 if status == 'ready' else 503)

  async def _text(self, request: Request) -> Response:
    return Response(self._metrics.text(), media_type='text/plain; version=0.0.4; charset=utf-8')

  async def _openapi(self, request: Request) -> Response:
    return JSONResponse(openapi.document(self._model.name, self._limits))

  async def _run(self, function: str, request: Request) -> tuple[list[str], Sequence[np.ndarray]]:
    """The names of a request's photos, and their rows of a function of the batcher."""
    self._check_open(function)
    async with self._reader.photos(request) as photos:
      with self._admit(len(photos)):
        images = await self._decoded(photos)
        waiting = [asyncio.wrap_future(self.batcher.submit(function, image)) for image in images]
        return [photo.name for photo in photos], await asyncio.gather(*waiting)

  async def _decoded(self, photos: Sequence[Photo]) -> list[np.ndarray]:
    """All photos, prepared in threads; the first error once none of them runs any more."""
    loop = asyncio.get_running_loop()
    decode = functools.partial(prepared, model=self._model, limits=self._limits)
    tasks = [loop.run_in_executor(self._decoders, decode, photo) for photo in photos]
    await asyncio.wait(tasks)
    return [task.result() for task in tasks]

  @contextlib.contextmanager
  def _admit(self, count: int) -> Iterator[None]:
    """Inside, so many photos count as waiting; 429 where there is no room for them."""
    if self._admitted and self._admitted + count > self._limits.waiting:
      raise self._busy()
    self._admitted += count
    try:
      yield
    finally:
      self._admitted -= count

  def _check_open(self, function: str) -> None:
    """Refuses a request before its body is read: the model has no such thing, or no time."""
    if reason := self._model.absent.get(function):
      raise HTTPException(400, reason)
    if not self._ready:
      raise HTTPException(503, 'The model is being compiled; try again soon.', {'Retry-After': '5'})
    if self._admitted >= self._limits.waiting:
      raise self._busy()

  def _busy(self) -> HTTPException:
    seconds = str(self.batcher.seconds_until_free())
    return HTTPException(429, f'Too many photos wait; try again in {seconds} s.', {'Retry-After': seconds})

  def _top(self, request: Request) -> int:
    text = request.query_params.get('top', str(_TOP))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
      raise HTTPException(400, f'top={text[:20]} is no number of classes; give 1 or more.')
    return int(text)

  async def _refuse(self, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = error.detail
    if error.status_code == 404:
      said = f'There is nothing at this path; ask {", ".join(sorted(self._paths))}.'
    elif error.status_code == 405:
      said = f'{request.method} is not answered here; /openapi.json says what is.'
    return JSONResponse({'error': said}, error.status_code, error.headers)

  async def _fail(self, request: Request, error: Exception) -> Response:
    return JSONResponse({'error': 'The service failed; its log says why.'}, 500)
