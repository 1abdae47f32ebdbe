"""`vit_jax serve` under a bounded load, beside the same model without a service, on this machine in turns.

  python benchmarks/serving.py CHECKPOINT photos/ --turns=15 --seconds=20   # ten minutes: five of them load

Clients with a connection each send a photo, wait for the answer and send the next. Clients, service and model share the
processors, so what the clients need is lost for the service. The model alone is one process that computes prepared
images in batches of that of the service's sizes which is the quickest here.
"""

import argparse
import contextlib
import http.client
import itertools
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import contenders
import numpy as np

_BOUNDARY = 'a-boundary'


def service(
  args: argparse.Namespace, ends: contextlib.ExitStack
) -> tuple[Mapping[str, Any], contenders.Work]:
  """The service and its clients, whose figures are of a turn of so many seconds; `ends` stops it."""
  command = [sys.executable, '-u', '-m', 'vit_jax.serve', args.checkpoint, '--port=0', *args.flags]
  running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
  ends.callback(running.wait)
  ends.callback(running.terminate)
  assert running.stdout is not None
  port = 0
  for line in running.stdout:
    if found := re.search(r'http://127\.0\.0\.1:(\d+);', line):
      port = int(found[1])
    if line.startswith('Ready'):
      break
  else:
    raise RuntimeError(f'the service ended with code {running.wait()}')
  threading.Thread(target=lambda: [None for _ in running.stdout], daemon=True).start()  # its lines
  head = (
    f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="photo"; filename="photo.jpg"\r\n\r\n'.encode()
  )
  bodies = [head + photo + f'\r\n--{_BOUNDARY}--\r\n'.encode() for photo in _photos(args.photos)]

  def client(number: int, end: float, seconds: list[float], statuses: list[int]) -> None:
    connection = http.client.HTTPConnection('127.0.0.1', port)
    headers = {'Content-Type': f'multipart/form-data; boundary={_BOUNDARY}'}
    for body in itertools.islice(itertools.cycle(bodies), number, None):
      begin = time.monotonic()
      if begin > end:
        break
      connection.request('POST', '/predict', body, headers)
      response = connection.getresponse()
      response.read()
      statuses.append(response.status)
      seconds.append(time.monotonic() - begin)
    connection.close()

  def metric(name: str) -> float:
    connection = http.client.HTTPConnection('127.0.0.1', port)
    connection.request('GET', '/metrics')
    return float(re.search(rf'^{name} (\S+)$', connection.getresponse().read().decode(), re.MULTILINE)[1])

  def work(turn: int) -> dict[str, float]:
    seconds: list[float] = []
    statuses: list[int] = []
    begin, before = time.monotonic(), metric('process_cpu_seconds_total')
    clients = [
      threading.Thread(target=client, args=(number, begin + turn, seconds, statuses))
      for number in range(args.clients)
    ]
    for each in clients:
      each.start()
    for each in clients:
      each.join()
    took, count = time.monotonic() - begin, statuses.count(200)
    return {
      'images/s': count / took,
      'processor': (metric('process_cpu_seconds_total') - before) / max(count, 1),
      'p50': float(np.quantile(seconds, 0.5)),
      'p99': float(np.quantile(seconds, 0.99)),
      'requests': len(statuses),
      'refused': len(statuses) - count,
      'memory': metric('process_resident_memory_bytes'),
    }

  return {}, work


def model(args: argparse.Namespace, ends: contextlib.ExitStack) -> tuple[Mapping[str, Any], contenders.Work]:
  """The model alone, in the quickest of the service's sizes of batches."""
  from vit_jax.data.decode import Picture
  from vit_jax.serve import served
  from vit_jax.serve.batching import Batcher

  own = served.opened(args.checkpoint, None, None, None)
  compute = own.functions['probabilities']
  photos = _photos(args.photos)[: own.batch_size]
  images = np.stack([own.prepare(Picture(photo, own.channels, 'a photo').pixels()) for photo in photos])
  timed = Batcher({'probabilities': compute}, own.example, own.batch_size, 0)
  timed.start()
  size = timed.quickest
  timed.close()
  images = np.resize(images, (size, *images.shape[1:]))

  def work(turn: int) -> dict[str, float]:
    begin, processor, count = time.monotonic(), time.process_time(), 0
    while time.monotonic() < begin + turn:
      compute(images)
      count += size
    took = max(time.monotonic() - begin, 1e-9)
    return {'images/s': count / took, 'processor': (time.process_time() - processor) / max(count, 1)}

  return {'batch': size}, work


def _photos(folder: str) -> list[bytes]:
  files = sorted(
    path for path in pathlib.Path(folder).rglob('*') if path.suffix.lower() in ('.jpg', '.jpeg', '.png')
  )
  if not files:
    sys.exit(f'There is no photo below {folder}; name a folder that has some.')
  return [path.read_bytes() for path in files[:: max(1, len(files) // 256)]]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('checkpoint')
  parser.add_argument('photos', help='a folder')
  parser.add_argument('--turns', type=int, default=5)
  parser.add_argument('--seconds', type=int, default=10, help='of a turn')
  parser.add_argument('--clients', type=int, default=16)
  parser.add_argument('--contender', choices=('service', 'model'), help=argparse.SUPPRESS)
  parser.add_argument('flags', nargs='*', help='after --: flags of vit_jax serve')
  args = parser.parse_args()
  if args.contender:
    with contextlib.ExitStack() as ends:
      return contenders.serve(lambda: {'service': service, 'model': model}[args.contender](args, ends))

  own = [sys.executable, __file__, *sys.argv[1:]]
  started = contenders.start(
    {name: [*own[:2], f'--contender={name}', *own[2:]] for name in ('service', 'model')}
  )
  turns = contenders.take_turns(started, args.turns, args.seconds, uncounted=1)
  if not turns.ended and len(turns):
    report(turns, args, started['model'].hello['batch'])
  if turns.ended:
    sys.exit(turns.ended)


def report(turns: contenders.Turns, args: argparse.Namespace, batch: int) -> None:
  """Prints medians over the turns, and how the memory went."""
  served, alone = turns.each('service', 'images/s'), turns.each('model', 'images/s')
  requests, refused = sum(turns.each('service', 'requests')), sum(turns.each('service', 'refused'))
  print(
    f'{args.checkpoint}: {len(turns)} turns of {args.seconds} s, {args.clients} clients, a photo a request'
  )
  rate = f'{statistics.median(served):.1f} requests and images/s'
  print(f'service  {rate}; {requests:.0f} requests, {refused:.0f} not answered by 200')
  for name in ('p50', 'p99'):
    values = [1000 * value for value in turns.each('service', name)]
    print(f'{name}      {statistics.median(values):.0f} ms; of the slowest turn {max(values):.0f} ms')
  print(f'model    {statistics.median(alone):.1f} images/s in batches of {batch}')
  ratio = statistics.median(own / other for own, other in zip(served, alone, strict=True))
  print(f'ratio    {ratio:.3f} of the wall clock')
  costs = [statistics.median(turns.each(name, 'processor')) for name in ('model', 'service')]
  milliseconds = f'{1000 * costs[0]:.0f} and {1000 * costs[1]:.0f} ms an image'
  print(f'         {costs[0] / costs[1]:.3f} of processor time: {milliseconds}')
  memory = [value / 2**20 for value in turns.each('service', 'memory')]
  print(f'memory   {memory[0]:.0f} MiB after the first turn, {memory[-1]:.0f} after the last')


if __name__ == '__main__':
  main()
