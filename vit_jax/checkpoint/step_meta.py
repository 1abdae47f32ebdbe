"""The JSON `meta` of a step: what the caller adds, a checksum for each array, and a digest of itself."""

import hashlib
import json
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint import checksums, failures
from vit_jax.checkpoint.failures import Damaged
from vit_jax.checkpoint.items import storable
from vit_jax.foundation.errors import UserError

FORMAT = 1


def sealed(
  items: dict[str, Any], meta: dict[str, Any], metrics: dict[str, float] | None
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
  """What a step holds, of the arguments of `Manager.save`: the leaves of each item by path, and the JSON file."""
  arrays = {name: storable(name, tree) for name, tree in items.items()}
  sums = {name: checksums.of_arrays(leaves) for name, leaves in arrays.items()}
  contents = {'format': FORMAT, 'meta': meta, 'metrics': metrics, 'items': sums}
  contents = json.loads(json.dumps(contents))  # as it will be read: keys are strings, tuples are lists
  return arrays, contents | {'digest': _digest(contents)}


def read(step: epath.Path) -> dict[str, Any]:
  """What `sealed` made ('format', 'meta', 'metrics', 'items'), from a step's directory.

  Raises Damaged where it cannot be read or does not match its digest, UserError for another version's format.
  """
  # Not by `CheckpointManager.restore`, here and for the arrays: it ends in a barrier, in which the others
  # would wait for a process that failed.
  handler = ocp.JsonCheckpointHandler()

  def contents_and_digest() -> tuple[dict[str, Any], str]:
    contents = dict(handler.restore(step / 'meta', args=ocp.args.JsonRestore()))
    return contents, contents.pop('digest')

  contents, digest = failures.read(contents_and_digest)
  if digest != _digest(contents):
    raise Damaged('the digest of meta does not match')
  if contents['format'] != FORMAT:
    raise UserError(
      f'Checkpoint {step} has format {contents["format"]} and this version reads {FORMAT}; use the version '
      f'of vit_jax that saved it.'
    )
  return contents


def _digest(contents: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(',', ':')).encode()).hexdigest()
