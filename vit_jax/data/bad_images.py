"""The list of training images that cannot be decoded, where `data.bad_images` is 'replace'."""

import logging
import pathlib
import threading

from vit_jax.foundation import files, json_lines
from vit_jax.foundation.errors import BadImage

_log = logging.getLogger(__name__)


class BadImages:
  """Every undecodable image once, with the first step whose batch needed it; threads may share it.

  Batches are made ahead of the step that is running. To make the counts independent of how far ahead, and the
  same in a resumed run, everything is asked for by step.
  """

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._found: dict[str, tuple[int, str]] = {}  # name -> (first step, error)
    self._path: pathlib.Path | None = None
    self._written = 0

  def add(self, step: int, error: BadImage) -> None:
    """Records that the batch of a step needed an image that cannot be decoded."""
    with self._lock:
      first, _ = self._found.get(error.name, (step, ''))
      self._found[error.name] = min(step, first), str(error)

  def keep_in(self, path: pathlib.Path, steps: int) -> None:
    """Writes the list to `path` from now on, continuing a file of JSON lines up to `steps`; the rest is dropped."""
    self._path = path
    self.recall(steps)

  def recall(self, steps: int) -> None:
    """Adds the images of the file that batches of steps before `steps` needed."""
    for line in json_lines.recover(self._path, _is_sound) if self._path else ():
      if line['step'] < steps:
        self.add(line['step'], BadImage(line['name'], line['error']))

  def report(self, steps: int) -> dict[str, int]:
    """Writes the images that the steps before `steps` needed to the file, if any; {'data/bad_images': count}."""
    with self._lock:
      found = sorted((step, name, error) for name, (step, error) in self._found.items() if step < steps)
    if self._path and found and (len(found) > self._written or not self._path.exists()):
      self._path.parent.mkdir(parents=True, exist_ok=True)
      with files.atomic_write(self._path) as file:
        for step, name, error in found:
          file.write(json_lines.text({'step': step, 'name': name, 'error': error}))
      _log.warning(
        '%d training images cannot be decoded and are not trained on: see %s', len(found), self._path
      )
      self._written = len(found)
    return {'data/bad_images': len(found)} if found else {}


def _is_sound(line: json_lines.Line) -> bool:
  """Whether a line has all that is read of it."""
  return (
    type(line.get('step')) is int and isinstance(line.get('name'), str) and isinstance(line.get('error'), str)
  )
