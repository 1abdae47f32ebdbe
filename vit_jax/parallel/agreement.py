"""What all processes of a run must have alike, compared: one that differs would train another run, or wait forever."""

import json
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.foundation.errors import UserError


class Fact(NamedTuple):
  """Something that all processes must have alike."""

  name: str  # what messages call it
  shown: str  # this process's, in words
  content: Any  # all of it, as JSON takes it


def check_facts(own: list[Fact]) -> None:
  """Raises UserError in all processes where a fact is not the same in all; all of them call this."""
  if jax.process_count() == 1:
    return
  mine = np.array([zlib.crc32(json.dumps(fact.content).encode()) for fact in own], np.uint32)
  found = np.asarray(multihost_utils.process_allgather(mine)).reshape(-1, len(own))
  for number, fact in enumerate(own):
    shown = fact.shown if len(fact.shown) <= 200 else f'{fact.shown[:200]}…'
    differing = np.flatnonzero(found[:, number] != found[0, number])
    if differing.size:
      raise UserError(
        f'The processes differ in {fact.name}: process {jax.process_index()} has {shown}, and not '
        f'all have what process 0 has (not {", ".join(map(str, differing[:10]))}); start them with the same command, '
        f'where they see the same files.'
      )


def check_arrays(name: str, arrays: Mapping[str, np.ndarray]) -> None:
  """Raises UserError in all processes where one has read other parameters from its files; all of them call this.

  `arrays`: path -> array, in any order; `name`: what messages call them.
  """
  if jax.process_count() == 1:
    return
  sums = {path: zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data) for path, array in arrays.items()}
  content = sorted(sums.items())
  digest = zlib.crc32(json.dumps(content).encode())
  check_facts([Fact(name, f'{len(arrays)} arrays with the checksum {digest:08x}', content)])
