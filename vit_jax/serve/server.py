"""The HTTP server around the service: closes connections of slow clients, and stops without losing a request."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vit_jax.foundation import signals
from vit_jax.foundation.errors import UserError
from vit_jax.serve.app import Service

_CONNECTIONS = 1000  # at a time; further ones get 503
_SECONDS_TO_HEAR = 0.3  # for connections and requests that lie in the kernel when the service is to stop


def bound(host: str, port: int) -> socket.socket:
  """A socket at an address; port 0: any free one. UserError where it is taken, or none of this machine's."""
  try:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound_socket = socket.socket(family, kind, protocol)
    bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound_socket.bind(address)
  except OSError as error:
    said = (
      f'--host={host} --port={port} cannot be served ({error.strerror}); choose others, or port 0 for any.'
    )
    raise UserError(said) from error
  return bound_socket


def run(service: Service, listening: socket.socket, seconds: float) -> None:
  """Serves until SIGTERM or Ctrl-C, after which every request that has come is answered.

  A client has so many seconds to send the head of a request, and to take its answer. Raises what compiling raises.
  """
  protocol = type('Protocol', (_PunctualProtocol,), {'seconds': seconds})
  config = uvicorn.Config(
    service,
    http=protocol,
    ws='none',
    lifespan='off',
    log_config=None,
    log_level='error',
    access_log=False,
    server_header=False,
    limit_concurrency=_CONNECTIONS,
    timeout_keep_alive=max(1, int(seconds)),
    h11_max_incomplete_event_size=64 * 2**10,
  )
  server = _Server(config, service)
  server.run([listening])
  if server.compiled and server.compiled.done() and (error := server.compiled.exception()):
    raise error


class _Server(uvicorn.Server):
  """Listens at once, compiles meanwhile, and stops when each request that has come is answered."""

  def __init__(self, config: uvicorn.Config, service: Service):
    super().__init__(config)
    self._service = service
    self.compiled: asyncio.Future | None = None

  async def startup(self, sockets: list[socket.socket] | None = None) -> None:
    await super().startup(sockets)
    host, port = self.servers[0].sockets[0].getsockname()[:2]
    sizes = ', '.join(map(str, self._service.batcher.sizes))
    print(f'Listening at http://{host}:{port}; compiling batches of {sizes} images.', flush=True)
    self.compiled = asyncio.get_running_loop().run_in_executor(None, self._service.compile)
    self.compiled.add_done_callback(self._say_ready)

  def _say_ready(self, compiled: asyncio.Future) -> None:
    if compiled.exception():
      self.should_exit = True
    else:
      print(f'Ready: {self._service.batcher.images_per_second:,.1f} images/s.', flush=True)

  async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
    self._service.stopping = True
    print('Stopping: what has been sent is answered.', flush=True)
    await _hear()  # closing a socket resets the connections that wait there to be accepted
    for server in self.servers:
      server.close()
    await _hear()  # uvicorn waits for requests that it has read, and no others
    await super().shutdown(sockets)
    if self.compiled and not self.compiled.done():  # which nothing can stop; no photo has been taken
      signals.end_process('Stopped while the model was being compiled.', 0)
    self._service.close()
    print(f'Stopped after {self._service.answered:,} requests.', flush=True)

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    """The first SIGTERM or Ctrl-C stops the server, a second Ctrl-C ends the process."""

    def react(number: int) -> None:
      if self.should_exit and number == signal.SIGINT:
        signals.end_process('Interrupted.', 130)
      self.should_exit = True

    with signals.Listener([signal.SIGINT, signal.SIGTERM], react):
      yield


async def _hear() -> None:
  """Accepts the connections and reads the requests that have come, however slowly the event loop turns.

  Within one turn a connection is accepted, in the next it gets its transport, in a third it is read.
  """
  for _ in range(3):
    await asyncio.sleep(_SECONDS_TO_HEAR / 3)


class _PunctualProtocol(H11Protocol):
  """HTTP/1.1 whose connections end where the client sends no whole head, or does not take an answer, in `seconds`."""

  seconds = 30.0
  _clock: asyncio.TimerHandle | None = None

  def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
    super().connection_made(transport)
    self._start_clock()

  def data_received(self, data: bytes) -> None:
    super().data_received(data)
    self._stop_clock_while_answering()  # the head is there; the service has its own clock for the body

  def on_response_complete(self) -> None:
    self._start_clock()
    super().on_response_complete()

  def pause_writing(self) -> None:
    super().pause_writing()
    self._start_clock()

  def resume_writing(self) -> None:
    super().resume_writing()
    self._stop_clock_while_answering()

  def connection_lost(self, exc: Exception | None) -> None:
    self._stop_clock()
    super().connection_lost(exc)

  def _stop_clock_while_answering(self) -> None:
    if self.cycle is not None and not self.cycle.response_complete:
      self._stop_clock()

  def _start_clock(self) -> None:
    self._stop_clock()
    self._clock = self.loop.call_later(self.seconds, self.transport.abort)

  def _stop_clock(self) -> None:
    if self._clock is not None:
      self._clock.cancel()
      self._clock = None
