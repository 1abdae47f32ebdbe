"""Checks an sdist and a wheel of this repository: python .ci/check_distributions.py FOLDER_WITH_BOTH.

The wheel holds every module and page, every recipe below vit_jax/configs, py.typed and the console script; the sdist
holds everything that the wheel is made of.
"""

import configparser
import pathlib
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).parents[1]


def expected_files() -> set[str]:
  """Paths of a wheel's files: modules, pages and py.typed at their places, recipes below vit_jax/configs."""
  listing = subprocess.run(
    ['git', 'ls-files', 'vit_jax/*.py', 'vit_jax/*.html', 'vit_jax/py.typed', 'configs/*.py'],
    cwd=ROOT,
    check=True,
    capture_output=True,
    text=True,
  )
  paths = listing.stdout.splitlines()
  return {f'vit_jax/{path}' if path.startswith('configs/') else path for path in paths}


def check_wheel(wheel: pathlib.Path) -> None:
  with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
    (entry_points,) = (name for name in names if name.endswith('.dist-info/entry_points.txt'))
    scripts = configparser.ConfigParser()
    scripts.read_string(archive.read(entry_points).decode())
  compare(wheel, {name for name in names if '.dist-info/' not in name})
  if scripts.get('console_scripts', 'vit_jax', fallback=None) != 'vit_jax.cli:main':
    sys.exit(f'{wheel.name} has no console script vit_jax = vit_jax.cli:main')


def check_sdist(sdist: pathlib.Path) -> None:
  with tarfile.open(sdist) as archive:
    files = (member.name.partition('/')[2] for member in archive.getmembers() if member.isfile())
    compare(sdist, {name for name in files if name.startswith('vit_jax/')})


def compare(archive: pathlib.Path, found: set[str]) -> None:
  expected = expected_files()
  if expected - found:
    sys.exit(f'{archive.name} lacks {sorted(expected - found)}')
  if found - expected:
    sys.exit(f'{archive.name} has what does not belong there: {sorted(found - expected)}')
  print(f'{archive.name}: {len(found)} files')


if __name__ == '__main__':
  folder = pathlib.Path(sys.argv[1])
  (wheel,), (sdist,) = folder.glob('*.whl'), folder.glob('*.tar.gz')
  check_wheel(wheel)
  check_sdist(sdist)
