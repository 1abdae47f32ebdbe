"""Saving and resuming: Orbax, with a checksum for every array and a way back from damage.

A step lies in `<directory>/<step>/`: one Orbax item for each tree of arrays, and `meta`, a JSON with
what the caller adds, the checksums and a digest of itself. Orbax alone restores flipped bytes and other
dtypes without a word, so nothing leaves this module unverified.
"""

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from vit_jax.checkpoint import checksums, failures
from vit_jax.checkpoint.config import CheckpointConfig
from vit_jax.checkpoint.failures import Damaged
from vit_jax.checkpoint.retention import Best
from vit_jax.errors import UserError
from vit_jax.pytrees import flatten, unflatten

FORMAT = 1  # of `meta`

_log = logging.getLogger(__name__)


class Manager:
  """The checkpoints of one run. In a run of several processes all of them must make the same calls."""

  def __init__(
    self,
    directory: str | os.PathLike,
    checkpoint: CheckpointConfig,
    *,
    keep_every_steps: int | None = None,
    read_only: bool = False,
  ):
    """Makes the directory and removes what a killed process left half saved.

    Args:
      directory: where the steps lie; it is made absolute.
      checkpoint: `keep` and `best` are read here.
      keep_every_steps: steps divisible by this are kept for good.
      read_only: to evaluate; nothing in the directory is changed.

    Raises:
      UserError: the directory cannot be written.
    """
    failures.hush()
    self._directory = _absolute(directory)
    self._best = Best(checkpoint.best)
    self._policies = [checkpoint_managers.LatestN(checkpoint.keep), self._best]
    if keep_every_steps:
      self._policies.append(checkpoint_managers.EveryNSteps(keep_every_steps))
    self._orbax = None
    if not read_only:
      with failures.explained(self._directory):
        self._clean()
        _barrier('vit_jax checkpoints cleaned')
        self._open()

  def path(self, step: int) -> str:
    """The directory of a step, for messages."""
    return str(self._directory / str(step))

  def all_steps(self) -> list[int]:
    """The committed steps, sound or not, in ascending order."""
    if not self._directory.exists():
      return []
    return sorted(ocp.utils.checkpoint_steps(self._directory))

  def latest_step(self) -> int | None:
    """The newest committed step; a save that is still being written does not count."""
    return max(self.all_steps(), default=None)

  def save(
    self,
    step: int,
    items: dict[str, Any],
    meta: dict[str, Any],
    metrics: dict[str, float] | None = None,
  ) -> bool:
    """Starts to save; returns when the arrays may be donated or changed, while files are still written.

    Args:
      step: of training.
      items: name -> tree of arrays; each can be restored without the others. Random keys are not stored.
      meta: what JSON can hold.
      metrics: name -> value of the evaluations so far, of which `checkpoint.best` must be one.

    Returns:
      False where that step is there already.

    Raises:
      UserError: no space, no permission, or no metric of the name `checkpoint.best`; also where that
        befell the save before this one.
    """
    if self._orbax is None:
      raise ValueError(f'{self._directory} was opened to be read only')
    with failures.explained(self._directory):
      self._orbax.check_for_errors()
      if step in self._orbax.all_steps():
        return False
      self._best.add(step, metrics)
      arrays = {name: _storable(name, tree) for name, tree in items.items()}
      contents = {
        'format': FORMAT,
        'meta': meta,
        'metrics': metrics,
        'items': {name: checksums.of_arrays(leaves) for name, leaves in arrays.items()},
      }
      # Nested dicts: what is stored is free of the classes of optimizer states. An item without arrays (the
      # state of an optimizer that has none) lies in `meta` alone.
      trees = {name: ocp.args.StandardSave(unflatten(leaves)) for name, leaves in arrays.items() if leaves}
      args = ocp.args.Composite(**trees, meta=ocp.args.JsonSave(_sealed(contents)))
      return self._orbax.save(step, args=args, force=True)

  def restore_newest(
    self, abstract_items: dict[str, Any]
  ) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
    """Restores the newest sound step.

    A damaged step is warned of, and moved to `damaged/` beside the directory once an older sound one is
    found; all processes fall back where one of them has to.

    Args:
      abstract_items: name -> tree of ShapeDtypeStructs with the shardings wanted (without one: this
        process's first device), on any mesh. Any subset of the items saved, even none.

    Returns:
      (step, name -> tree of arrays, the caller's meta), or None where nothing was ever saved.

    Raises:
      UserError: there are steps but none is sound, or a sound one does not hold what is asked for.
    """
    self.wait()
    damaged = []
    for step in reversed(self._agreed_steps()):
      try:
        items, meta = self._verified(step, abstract_items)
      except Damaged as error:
        _log.warning('Checkpoint %s is damaged (%s); trying the one before it.', self.path(step), error)
        damaged.append(step)
      else:
        if damaged and self._orbax is not None:
          self._move_aside(damaged)
        return step, items, meta
    if damaged:
      raise UserError(
        f'None of the {len(damaged)} checkpoints in {self._directory} is sound; restore the directory from '
        f'a copy, or remove it to train from the start.'
      )
    return None

  def restore(self, step: int, abstract_items: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Restores one step: (name -> tree of arrays, the caller's meta); see `restore_newest`.

    Raises:
      UserError: the step is not there, is damaged, or does not hold what is asked for.
    """
    self.wait()
    steps = self._agreed_steps()
    if step not in steps:
      there = f'the steps {", ".join(map(str, steps))}' if steps else 'none'
      raise UserError(f'There is no checkpoint of step {step} in {self._directory}; there are {there}.')
    try:
      return self._verified(step, abstract_items)
    except Damaged as error:
      raise UserError(f'Checkpoint {self.path(step)} is damaged ({error}); choose another step.') from error

  def wait(self) -> None:
    """Returns when all saves are committed; raises UserError as `save` does."""
    if self._orbax is not None:
      with failures.explained(self._directory):
        self._orbax.wait_until_finished()

  def close(self) -> None:
    """Waits, and ends the threads."""
    if self._orbax is not None:
      with failures.explained(self._directory):
        self._orbax.close()

  def __enter__(self) -> 'Manager':
    return self

  def __exit__(self, kind: type | None, *_) -> None:
    # While another error is on its way, a save that fails too must not hide it.
    with contextlib.suppress(UserError) if kind else contextlib.nullcontext():
      self.close()

  def _clean(self) -> None:
    """Makes the directory, sees that it can be written, and removes partial saves."""
    self._directory.mkdir(parents=True, exist_ok=True)
    if '://' not in str(self._directory):
      with tempfile.TemporaryFile(dir=self._directory):
        pass
    if jax.process_index() == 0:
      for path in self._directory.iterdir():
        if ocp.path.atomicity_types.TMP_DIR_SUFFIX in path.name:
          path.rmtree()

  def _open(self) -> None:
    options = ocp.CheckpointManagerOptions(
      create=False,
      # Object stores have no atomic rename: there a partial save is a step without a commit file.
      cleanup_tmp_directories=True,
      # Do not read the steps' own files now: a damaged one would raise.
      lightweight_initialize=True,
      preservation_policy=checkpoint_managers.AnyPreservationPolicy(self._policies),
    )
    self._orbax = _Orbax(self._directory, options=options)
    for step in self._orbax.all_steps():
      with contextlib.suppress(Damaged, OSError):
        self._best.remember(step, self._contents(step)['metrics'])

  def _move_aside(self, steps: list[int]) -> None:
    with failures.explained(self._directory):
      self._orbax.close()
      if jax.process_index() == 0:
        aside = self._directory.parent / 'damaged'
        aside.mkdir(exist_ok=True)
        for step in steps:
          taken = {path.name for path in aside.iterdir()}
          number = next(n for n in range(len(taken) + 1) if f'{step}-{n}' not in taken)
          (self._directory / str(step)).rename(aside / f'{step}-{number}')
      _barrier('vit_jax damaged checkpoints moved')
      self._open()  # Orbax remembers the steps it found at its start

  def _agreed_steps(self) -> list[int]:
    steps = self.all_steps()
    if jax.process_count() > 1:
      digest = int(hashlib.sha256(str(steps).encode()).hexdigest()[:7], 16)
      if len(set(multihost_utils.process_allgather(np.int32(digest)).tolist())) > 1:
        raise UserError(
          f'The processes see different checkpoints in {self._directory}; put it on a file system that all '
          f'of them share.'
        )
    return steps

  def _verified(self, step: int, abstract_items: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The items and the caller's meta of a step, or Damaged, or UserError; the same in all processes."""
    with failures.agreed():
      contents = self._contents(step)
      if callable(abstract_items):
        abstract_items = abstract_items(contents['meta'])
      self._check_asked(step, contents['items'], abstract_items)
      flat = {name: self._read(step, name, tree) for name, tree in abstract_items.items()}
    with failures.agreed():  # a second time, for now all have their arrays: the sums need all processes
      for name, arrays in flat.items():
        for path, found in checksums.of_arrays(arrays).items():
          if found != contents['items'][name][path]:
            raise Damaged(f'the checksum of {name} {path} does not match')
    items = {
      name: jax.tree.unflatten(jax.tree.structure(tree), list(flat[name].values()))
      for name, tree in abstract_items.items()
    }
    return items, contents['meta']

  def _contents(self, step: int) -> dict[str, Any]:
    """`meta` as it was saved, its digest checked."""
    # Not by CheckpointManager.restore, here and for the arrays: it ends in a barrier, in which the others
    # would wait for a process that failed.
    handler = ocp.JsonCheckpointHandler()
    directory = self._directory / str(step) / 'meta'

    def contents_and_digest() -> tuple[dict[str, Any], str]:
      contents = handler.restore(directory, args=ocp.args.JsonRestore())
      return contents, contents.pop('digest')

    contents, digest = failures.read(contents_and_digest)
    if digest != _digest(contents):
      raise Damaged('the digest of meta does not match')
    if contents['format'] != FORMAT:
      raise UserError(
        f'Checkpoint {self.path(step)} has format {contents["format"]} and this version reads {FORMAT}; use '
        f'the version of vit_jax that saved it.'
      )
    return contents

  def _check_asked(self, step: int, stored: dict[str, Any], abstract_items: dict[str, Any]) -> None:
    """Raises UserError where a step, though sound, does not hold what is asked for."""
    for name, tree in abstract_items.items():
      if name not in stored:
        raise UserError(f'Checkpoint {self.path(step)} has no {name!r}; it has {", ".join(sorted(stored))}.')
      asked = {path: checksums.describe(leaf) for path, leaf in _flat(tree).items()}
      for path in sorted(asked.keys() | stored[name].keys()):
        have, want = (_shape_text(side.get(path)) for side in (stored[name], asked))
        if have != want:
          raise UserError(
            f'Checkpoint {self.path(step)} does not fit: {name} {path} is {have} there and {want} in this '
            f'config; use the config it was saved with, or another workdir.'
          )

  def _read(self, step: int, name: str, tree: Any) -> dict[str, jax.Array]:
    """The arrays of an item by path, not verified yet."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    abstract = {
      path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, 'sharding', None) or here)
      for path, leaf in _flat(tree).items()
    }
    if not abstract:
      return {}
    directory, args = self._directory / str(step) / name, ocp.args.StandardRestore(unflatten(abstract))

    def arrays() -> dict[str, jax.Array]:
      found = _flat(ocp.StandardCheckpointHandler().restore(directory, args=args))
      return {path: found[path] for path in abstract}

    return failures.read(arrays)


class _Orbax(ocp.CheckpointManager):
  def reached_preemption(self, step: int) -> bool:
    """False: `StopSignal` asks JAX for the sync point.

    Orbax would ask too, in its threads and with the step that is being saved: to JAX that looks as if
    this process had gone back, and it could set the sync point to a step that is over.
    """
    return False


def _absolute(directory: str | os.PathLike) -> epath.Path:
  text = os.fspath(directory)
  return epath.Path(text if '://' in text else os.path.abspath(text))


def _barrier(name: str) -> None:
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def _flat(tree: Any) -> dict[str, Any]:
  """{'a/b': leaf}; a tree that is a leaf has the path 'value'."""
  flat = {path or 'value': leaf for path, leaf in flatten(tree).items()}
  if len(flat) != len(jax.tree.leaves(tree)):
    raise ValueError('two leaves of the tree have the same path')
  return flat


def _storable(name: str, tree: Any) -> dict[str, Any]:
  """The leaves by path, each an array; Python's and NumPy's numbers in the dtype JAX gives them."""
  result = {}
  for path, leaf in _flat(tree).items():
    if not isinstance(leaf, jax.Array):
      value = np.asarray(leaf)
      leaf = value.astype(jax.dtypes.canonicalize_dtype(value.dtype))
      if not np.array_equal(leaf, value, equal_nan=value.dtype.kind == 'f'):
        raise ValueError(f'{name} {path} does not fit into {leaf.dtype}')
    elif jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      raise ValueError(f'{name} {path} is a random key; save the seed it is made from instead')
    result[path] = leaf
  return result


def _shape_text(description: dict[str, Any] | None) -> str:
  return f'{description["dtype"]} {tuple(description["shape"])}' if description else 'missing'


def _sealed(contents: dict[str, Any]) -> dict[str, Any]:
  contents = json.loads(json.dumps(contents))  # as it will be read: keys strings, tuples lists
  return contents | {'digest': _digest(contents)}


def _digest(contents: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(',', ':')).encode()).hexdigest()
