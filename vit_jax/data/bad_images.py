"""The training images that cannot be decoded, where `data.bad_images` has others stand in for them."""

import json
import logging
import pathlib
import threading

from vit_jax.errors import BadImage


class BadImages:
  """Each such image once, with the first step that met it; threads may add.

  Batches are made ahead. So that what is counted does not depend on when, and is the same in a run that was
  resumed, it is asked for by step.
  """

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._found: dict[str, tuple[int, str]] = {}  # name -> first step, what is wrong
    self._path: pathlib.Path | None = None
    self._written = 0

  def add(self, step: int, error: BadImage) -> None:
    with self._lock:
      first, _ = self._found.get(error.name, (step, ''))
      self._found[error.name] = min(step, first), str(error)

  def keep_in(self, path: pathlib.Path, steps: int) -> None:
    """Goes on with the list at `path`, as it was after steps 0 .. steps - 1, if there is one."""
    self._path = path
    for text in path.read_text().splitlines() if path.exists() else ():
      line = json.loads(text)
      if line['step'] < steps:
        self.add(line['step'], BadImage(line['name'], line['error']))

  def report(self, steps: int) -> dict[str, int]:
    """Lists what the steps 0 .. steps - 1 met, a line of JSON for an image.

    Returns:
      {'data/bad_images': their number}, or nothing where there are none.
    """
    with self._lock:
      found = sorted((step, name, error) for name, (step, error) in self._found.items() if step < steps)
    if len(found) > self._written:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      partial = self._path.with_suffix('.partial')
      lines = (json.dumps({'step': step, 'name': name, 'error': error}) + '\n' for step, name, error in found)
      partial.write_text(''.join(lines))
      partial.replace(self._path)
      logging.warning('Others stand in for %d images that cannot be decoded: see %s', len(found), self._path)
      self._written = len(found)
    return {'data/bad_images': len(found)} if found else {}
