"""Serves a model over HTTP: predictions, embeddings and attention of photos, and a page to try them.

vit_jax serve runs/mine
vit_jax serve imagenet21k+imagenet2012/ViT-B_16 --host=0.0.0.0 --port=8080 --batch_size=32
vit_jax serve out/ --host=0.0.0.0
vit_jax serve /path/to/clip --classes='a photo of a dog, a photo of a cat'

The model is what `vit_jax.load` takes, or a folder of `vit_jax export`. Open http://127.0.0.1:8000 and drop photos
there, or `curl --form photo=@photo.jpg http://127.0.0.1:8000/predict`. SIGTERM or Ctrl-C stops the service once it has
answered what it was sent. docs/serving.md has the endpoints, and how batches are made.
"""

import sys
from collections.abc import Sequence

from absl import flags

from vit_jax import cli
from vit_jax.foundation.errors import UserError

_HOST = flags.DEFINE_string('host', '127.0.0.1', 'Address to listen at; 0.0.0.0: all of this machine.')
_PORT = flags.DEFINE_integer('port', 8000, 'Port to listen at; 0: any free one.', 0, 65535)
_WEIGHTS = cli.define_weights()
_CLASSES = cli.define_classes()
_CLASS_NAMES = cli.define_class_names()
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', None, 'Images at a time, at most (default: 8 on a processor, 64 on an accelerator).', 1, 4096
)
_DELAY_MS = flags.DEFINE_float(
  'delay_ms', 2.0, 'Milliseconds that a photo waits for others while the model has nothing to do.', 0, 1000
)
_MAX_WAITING = flags.DEFINE_integer(
  'max_waiting', 256, 'Photos that may wait for their answer; further ones get 429.', 1
)
_MAX_MEGABYTES = flags.DEFINE_integer('max_megabytes', 32, 'Size of a request, in MiB.', 1, 1024)
_MAX_MEGAPIXELS = flags.DEFINE_integer(
  'max_megapixels', 50, 'Size of a photo, in millions of pixels.', 1, 178
)
_TIMEOUT = flags.DEFINE_float(
  'timeout', 30.0, 'Seconds that a client has to send a request, and to take its answer.', 1, 3600
)


def main(arguments: Sequence[str]) -> None:
  """Loads the model and serves it until a signal."""
  if len(arguments) != 1:
    raise cli.missing_arguments(f'Name the model to serve, which is one name and not {len(arguments)}')
  try:
    from vit_jax.serve import server
    from vit_jax.serve.app import Service
    from vit_jax.serve.photos import Limits
  except ModuleNotFoundError as error:
    package = str(error.name).partition('.')[0]
    raise UserError(f"vit_jax serve needs the package {package}: pip install 'vit_jax[serve]'.") from error
  from vit_jax.foundation import compilation_cache
  from vit_jax.serve import served

  listening = server.bound(cli.required(_HOST), cli.required(_PORT))
  compilation_cache.enable()
  model = served.opened(arguments[0], _WEIGHTS.value, _CLASSES.value, _CLASS_NAMES.value)
  limits = Limits(
    bytes=cli.required(_MAX_MEGABYTES) * 2**20,
    pixels=cli.required(_MAX_MEGAPIXELS) * 10**6,
    waiting=cli.required(_MAX_WAITING),
    seconds=cli.required(_TIMEOUT),
  )
  largest = min(_BATCH_SIZE.value or model.batch_size, model.most or sys.maxsize)
  service = Service(model, limits, largest, cli.required(_DELAY_MS) / 1000)
  server.run(service, listening, limits.seconds)


if __name__ == '__main__':
  cli.run(main, positional=True)
