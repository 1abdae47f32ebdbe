"""The command itself, in processes of its own."""

import contextlib
import functools
import os
import pathlib
import signal
import subprocess
import sys
import time

import fork_server
import numpy as np
import pytest
from image_bytes import jpeg
from prepared_sets import files
from processes import run as run_script
from processes import wait_until

ROOT = pathlib.Path(__file__).parents[2]


def _listen_to_interrupts():
  """What was started in the background ignores SIGINT, and so would what it starts."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*arguments) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, '-m', 'vit_jax.prepare', *map(str, arguments)],
    env=dict(os.environ, PYTHONPATH=str(ROOT)),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    preexec_fn=_listen_to_interrupts,
  )


def run(*arguments) -> tuple[int, str, str]:
  """Exit code, stdout and stderr."""
  result = fork_server.run('vit_jax.prepare', *map(str, arguments), cwd=pathlib.Path.cwd())
  return result.returncode, result.stdout, result.stderr


def reports(folder):
  with contextlib.suppress(FileNotFoundError):
    return {name for name in os.listdir(folder / '.unfinished/reports') if name.endswith('.json')}
  return set()


def shard(folder, report):
  """The file of a report 'train-2.json'. Killed between the two, a process leaves the file alone."""
  number = int(report.removeprefix('train-').removesuffix('.json'))
  return folder / f'set-train.array_record-{number:05}-of-00020'


def wait_for_reports(process, folder, count):
  while len(reports(folder)) < count:
    assert process.poll() is None, process.communicate()
    time.sleep(0.005)


def children(pid):
  text = ''.join(path.read_text() for path in pathlib.Path(f'/proc/{pid}/task').glob('*/children'))
  return [int(child) for child in text.split()]


def command_line(pid):
  with contextlib.suppress(OSError):
    return pathlib.Path(f'/proc/{pid}/cmdline').read_text()
  return ''


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
  """Twenty images that take a while, each larger than a shard may be."""
  root = tmp_path_factory.mktemp('photos') / 'photos'
  rng = np.random.default_rng(0)
  for number in range(20):
    folder = root / 'ab'[number % 2]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f'{number}.jpg').write_bytes(jpeg(rng.integers(0, 256, (900, 900, 3)), quality=97))
  return root


@pytest.mark.nightly
def test_killed_commands_go_on_to_the_same_bytes(photos, tmp_path):
  flags = ('--shard_mib=1', '--longest_side=800')
  code, output, errors = run(photos, tmp_path / 'undisturbed/set', *flags, '--workers=2')
  assert code == 0 and 'train 20 images, 2 classes; 20 files' in output, errors
  assert not (tmp_path / 'undisturbed/set/.unfinished').exists()

  folder = tmp_path / 'set'
  first = start(photos, folder, *flags, '--workers=2')
  wait_for_reports(first, folder, 3)
  workers = [child for child in children(first.pid) if 'spawn_main' in command_line(child)]
  first.kill()
  first.communicate()
  assert len(workers) == 2 and not (folder / 'dataset_info.json').exists()
  wait_until(lambda: not any('spawn_main' in command_line(worker) for worker in workers))
  done = {path: path.stat().st_mtime_ns for path in map(functools.partial(shard, folder), reports(folder))}
  assert 3 <= len(done) < 20

  second = start(photos, folder, *flags, '--workers=1')
  wait_for_reports(second, folder, len(reports(folder)) + 1)
  (worker,) = [child for child in children(second.pid) if 'spawn_main' in command_line(child)]
  os.kill(worker, signal.SIGKILL)
  assert second.communicate()[1].endswith('Start the same command again to go on.\n')
  assert second.returncode == 75

  third = start(photos, folder, *flags, '--workers=1')
  wait_for_reports(third, folder, len(reports(folder)) + 1)
  third.send_signal(signal.SIGINT)
  output, errors = third.communicate()
  assert (third.returncode, errors) == (75, 'Interrupted. Start the same command again to go on.\n'), output

  assert run(photos, folder, *flags)[0] == 0
  assert files(folder) == files(tmp_path / 'undisturbed/set')
  for path, when in done.items():
    assert path.stat().st_mtime_ns == when  # not written again
  code, output, _ = run(photos, folder, *flags)
  assert code == 0 and output.startswith(
    f'{folder} is complete with train 20 images; nothing is left to do'
  ), output


@pytest.fixture
def few(tmp_path):
  """A folder with one image, and a named pipe, which is left out."""
  (tmp_path / 'x/a').mkdir(parents=True)
  (tmp_path / 'x/a/1.jpg').write_bytes(jpeg(np.zeros((8, 8, 3))))
  os.mkfifo(tmp_path / 'x/a/pipe.jpg')
  return tmp_path / 'x'


def test_a_second_command_says_of_how_many_images_the_data_set_is_and_that_later_ones_are_not_in_it(
  few, tmp_path
):
  flags = ('--bad_images=skip', '--workers=1')
  assert run(few, tmp_path / 'set', *flags)[0] == 0
  (few / 'a/2.jpg').write_bytes(jpeg(np.ones((8, 8, 3))))
  code, output, _ = run(few, tmp_path / 'set', *flags)
  assert code == 0 and 'complete with train 1 images' in output and f'{few} was not read again' in output, (
    output
  )


@pytest.mark.slow
def test_bad_images_end_the_command_or_are_skipped(few, tmp_path):
  (few / 'a/2.jpg').write_bytes(b'')
  code, output, errors = run(few, tmp_path / 'set')
  assert (code, output) == (2, '') and errors.startswith(
    '1 of 2 images is bad: a/2.jpg, which is empty (0 bytes); repair it and '
  )
  code, output, _ = run(few, tmp_path / 'set', '--bad_images=skip')
  assert code == 0 and f'1 bad images are left out, see {tmp_path}/set/bad_images.csv.' in output


@pytest.mark.slow
def test_mistyped_source_does_not_lock_the_destination(few, tmp_path):
  (tmp_path / 'empty').mkdir()
  for wrong in (tmp_path / 'none', tmp_path / 'empty'):
    assert run(wrong, tmp_path / 'set')[0] == 2
  code, output, errors = run(few, tmp_path / 'set')
  assert code == 0 and output.startswith(f'Wrote {tmp_path}/set: train 1 images'), errors
  assert errors.startswith(
    f'Warning: {tmp_path}/set was begun with source {tmp_path}/empty, and no file of that is complete; '
    f'it starts anew with source {few}.\n'
  )


@pytest.mark.parametrize(
  'arguments,message',
  [
    (['src'], 'SRC or DST is missing; write: vit_jax prepare /path/to/images'),
    (['src', 'dst', 'more'], "'more' is neither SRC nor DST"),
    (['/no/source', 'dst'], 'There is no /no/source; give a folder, a tar or zip archive, or a file'),
    (['src', 'dst', '--shortest_side=0'], 'shortest_side'),
  ],
)
def test_unusable_arguments_are_refused_in_one_line(tmp_path, monkeypatch, arguments, message):
  monkeypatch.chdir(tmp_path)
  code, output, errors = run(*arguments)
  assert (code, output) == (2, '') and message in errors and len(errors.splitlines()) == 1
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_tensorflow_torch_beam_and_jax_are_not_imported(few, tmp_path):
  script = """
    import sys
    from vit_jax.prepare import processes, run, shards
    from vit_jax.prepare.images import Shrinking

    processes.run = lambda jobs, workers, done: [done(shards.write(job)) for job in jobs]
    print(run.prepare(sys.argv[1], sys.argv[2], run.Options(Shrinking(longest_side=100))))
    assert not {'tensorflow', 'torch', 'apache_beam', 'jax'} & set(sys.modules), set(sys.modules)
    """
  assert "records={'train': 1}" in run_script(script, arguments=(few, tmp_path / 'set'))[0]
