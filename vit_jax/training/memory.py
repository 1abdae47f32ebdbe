"""Memory that a run needs, before anything is compiled: what cannot fit by far is refused at once."""

import math
import os

import jax

from vit_jax.config import Config
from vit_jax.foundation.errors import UserError
from vit_jax.parallel.sharding import device_bytes
from vit_jax.training.run import Run

_GIB = 2**30


def check(run: Run) -> None:
  """Raises UserError for a state, or batches made ahead, larger than the memory here; activations are not counted."""
  host = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  _check_state(run, host)
  _check_batches(run.config, host)


def _check_state(run: Run, host: int) -> None:
  """Raises UserError if a device has less memory than its part of the state; `host` is that of the machine."""
  devices = jax.local_devices()
  stats = devices[0].memory_stats()  # None on CPUs, which share the host's memory
  room = stats['bytes_limit'] if stats and 'bytes_limit' in stats else host // len(devices)
  state = device_bytes((run.program.state, run.frozen_shapes))
  if state > room:
    raise UserError(
      f'The parameters and the optimizer state take {state / _GIB:,.1f} GiB on each device, which has '
      f'{room / _GIB:,.1f} GiB; choose a smaller config.model, or split it over more devices (config.mesh).'
    )


def _check_batches(config: Config, host: int) -> None:
  """Raises UserError if the batches that are made ahead take more than the `host` bytes of the machine."""
  data = config.data
  sizes = {'batch_size': config.batch_size}
  sizes |= {f'evaluators.{name}.batch_size': item.batch_size or 0 for name, item in config.evaluators.items()}
  for name, images in sizes.items():
    size = images // jax.process_count() * math.prod(data.input_size) * data.channels * (data.prefetch + 1)
    if size > host:
      height, width = data.image_size
      raise UserError(
        f'config.{name} is {images:,}: with config.data.prefetch {data.prefetch}, batches of images of {height} × '
        f'{width} pixels take {size / _GIB:,.1f} GiB of the {host / _GIB:,.1f} GiB of this machine; lower it.'
      )
