"""Kills runs of two processes whose workdir and data are in a bucket; every run must end in the bits of one on a disk.

  python tests/kills_in_a_bucket.py --total=100 --folder=/tmp/kills_in_a_bucket    # the same command goes on

Beside a kill the disk is lost too. Each start meets some requests that fail, are cut off or do not answer for three
seconds. The bucket is an emulator in this process, so that a round which this program does not finish begins anew.
"""

import pathlib
import shutil

import fork_server
import kill_and_resume
import numpy as np
from bucket_emulators import Place, places
from PIL import Image
from sklearn import datasets
from thousand_kills import DEVICES, Harness, arguments, kill

READ_FAULTS = (503, 'cut', 429, 'stall', 503, 'cut')
WRITE_FAULTS = (503, 429)


class BucketHarness(Harness):
  """Runs in a bucket, killed and compared with runs in a folder."""

  processes = (2,)
  most_lines = 5

  def __init__(self, folder: pathlib.Path, place: Place):
    super().__init__(folder)
    self._place = place
    shutil.copy(fork_server.ROOT / 'tests' / 'train_in_bucket.py', folder)
    if not (folder / 'digits' / 'SHA256SUMS').exists():
      self._prepare_digits()
    self._data = place.put_folder(folder / 'digits', 'data/digits')
    self._before: list[str] = []  # what was logged when the processes were started last

  def start(self, workdir: pathlib.Path, processes: int) -> list[fork_server.Command]:
    in_bucket = not workdir.name.startswith('alone')
    if in_bucket:
      self._place.proxy.faults[:] = READ_FAULTS
      self._place.proxy.write_faults[:] = WRITE_FAULTS
      name = f'runs/{workdir.name}/metrics.jsonl'
      begun = name in self._place.names(f'runs/{workdir.name}')
      self._before = self._place.get(name).decode().splitlines() if begun else []
    variables = kill_and_resume.joined(processes, DEVICES[processes] // processes)
    return [
      fork_server.start(
        'train_in_bucket',
        f'--config={self.config}',
        f'--workdir={self._address(workdir) if in_bucket else workdir}',
        f'--config.data.source=tfds:{self._data if in_bucket else self.folder / "digits"}',
        cwd=self.folder,
        environment=variables[index] | {'XDG_CACHE_HOME': f'{self._disk(workdir)}/{index}'},
        log=self.folder / f'{workdir.name}.{index}.log',
      )
      for index in range(processes)
    ]

  def lines(self, workdir: pathlib.Path) -> list[str]:
    """The lines on the disk of process 0 or, before it has a disk, those that were in the bucket at its start."""
    for file in self._disk(workdir).glob('0/vit_jax/runs/*/0/*/metrics.jsonl'):
      return [line for line in file.read_text().splitlines(keepends=True) if line.endswith('\n')]
    return self._before

  def is_saving(self, workdir: pathlib.Path) -> bool:
    return any(self._disk(workdir).glob('0/vit_jax/saving/*/0/*'))

  def after_kill(self, workdir: pathlib.Path) -> None:
    """The disks are lost."""
    shutil.rmtree(self._disk(workdir), ignore_errors=True)

  def result(self, workdir: pathlib.Path) -> pathlib.Path:
    shutil.rmtree(workdir, ignore_errors=True)
    name = f'runs/{workdir.name}'
    self._place.get_folder(name, workdir)
    for item in self._place.names(name):
      self._place.remove(item)
    return workdir

  def _address(self, workdir: pathlib.Path) -> str:
    return f'gs://bucket/runs/{workdir.name}'

  def _disk(self, workdir: pathlib.Path) -> pathlib.Path:
    return self.folder / f'{workdir.name}.disk'

  def _prepare_digits(self) -> None:
    """Writes scikit-learn's digits as a prepared data set: the first 1,440 are train, the others test."""
    digits = datasets.load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
      split = 'train' if number < 1440 else 'test'
      path = self.folder / 'photos' / split / str(label) / f'{number}.png'
      path.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray((image * 15).astype(np.uint8)).save(path)
    made = fork_server.run('vit_jax.prepare', 'photos', 'digits', cwd=self.folder)
    assert made.returncode == 0, made.stderr


def main() -> None:
  """Kills runs in a bucket."""
  args = arguments(__doc__)
  with places('gs') as place:
    kill(BucketHarness(args.folder, place), args.total, args.first_seed)


if __name__ == '__main__':
  main()
