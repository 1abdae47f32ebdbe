"""Reads TensorBoard's files without TensorBoard."""

import pathlib
from typing import Any

from tensorboardX.proto import event_pb2


def read(workdir: pathlib.Path) -> list[tuple[int, Any]]:
  """(step, value) of all files of a run; a value has a `tag` and a number, a picture, a histogram or text."""
  found = []
  for path in sorted(workdir.glob('events.out.tfevents.*')):
    content = path.read_bytes()
    while content:  # records of length (8 bytes), its checksum (4), an event, its checksum (4)
      size = int.from_bytes(content[:8], 'little')
      event = event_pb2.Event.FromString(content[12 : 12 + size])
      found += [(event.step, value) for value in event.summary.value]
      content = content[16 + size :]
  return found
