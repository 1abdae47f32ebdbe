"""TensorBoard's file of a run: metrics, hyper-parameters, the config, pictures and histograms."""

import json
import pathlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax.foundation import files, pytrees

if TYPE_CHECKING:
  import tensorboardX

_BINS = 64  # of a histogram


class Board:
  """Writes, on process 0, into the workdir itself, so that TensorBoard calls the run as the workdir."""

  def __init__(self, workdir: pathlib.Path, resume_step: int):
    """TensorBoard drops what the run wrote after `resume_step`."""
    self._files = workdir / 'events.out.tfevents.*'
    self._writer = _summary_writer(workdir, resume_step) if jax.process_index() == 0 else None

  def scalars(self, step: int, values: Mapping[str, float]) -> None:
    """Adds the metrics of a step."""
    if self._writer is not None:
      for name, value in values.items():
        self._writer.add_scalar(name, value, step)
      with files.named(self._files):
        self._writer.flush()

  def config(self, config: config_lib.Config) -> None:
    """Adds the config as text, and its options as hyper-parameters beside the evaluators' metrics."""
    if self._writer is None:
      return
    from tensorboardX import summary

    text = json.dumps(config_lib.as_json(config), indent=2)
    self._writer.add_text('config', '    ' + text.replace('\n', '\n    '))  # four spaces: code in Markdown
    values = config_lib.flatten(config).items()
    options = {name: value if isinstance(value, bool | int | float) else str(value) for name, value in values}
    metrics = [
      metric
      for name, evaluator in config.evaluators.items()
      for metric in evaluator.best_metrics(name, config.data)
    ]
    file = self._writer.file_writer
    assert file is not None
    for part in summary.hparams(options, dict.fromkeys(['train/loss', *metrics])):
      file.add_summary(part)

  def picture(self, step: int, name: str, path: pathlib.Path) -> None:
    """Adds a PNG, if it is there."""
    if self._writer is not None and path.exists():
      from PIL import Image

      with Image.open(path) as image:
        self._writer.add_image(name, np.asarray(image.convert('RGB')), step, dataformats='HWC')

  def histograms(self, step: int, params: Any) -> None:
    """Adds a histogram of each parameter. All processes of a run call this."""
    for name, values in jax.device_get(_histograms(pytrees.flatten(params))).items():
      if self._writer is not None:
        counts, edges = values.pop('counts'), values.pop('edges')
        moments = {moment: float(value) for moment, value in values.items()}
        self._writer.add_histogram_raw(
          name,
          num=int(counts.sum()),
          bucket_limits=edges[1:].tolist(),
          bucket_counts=counts.tolist(),
          global_step=step,
          **moments,
        )

  def close(self) -> None:
    """Ends the file."""
    if self._writer is not None:
      with files.named(self._files):
        self._writer.close()


@jax.jit
def _histograms(params: dict[str, jax.Array]) -> dict[str, dict[str, jax.Array]]:
  """Counts, edges and moments of each array, on the devices, so that sharded ones need not be gathered."""
  found = {}
  for name, array in params.items():
    values = array.astype(jnp.float32).ravel()
    counts, edges = jnp.histogram(values, bins=_BINS)
    found[name] = {
      'counts': counts,
      'edges': edges,
      'min': values.min(),
      'max': values.max(),
      'sum': values.sum(),
      'sum_squares': (values**2).sum(),
    }
  return found


def _summary_writer(folder: pathlib.Path, resume_step: int) -> 'tensorboardX.SummaryWriter':
  """TensorBoard's writer, which drops the events after `resume_step`.

  tensorboardX imports PyTorch and clients of buckets wherever they are installed, which takes a second or more and is
  of no use here: None in `sys.modules` keeps them out.
  """
  hidden = dict.fromkeys({'torch', 'boto3', 'google.cloud.storage'} - sys.modules.keys())
  sys.modules.update(hidden)  # pyright: ignore[reportArgumentType, reportCallIssue]
  try:
    import tensorboardX
  finally:
    for name in hidden:
      del sys.modules[name]
  return tensorboardX.SummaryWriter(str(folder), purge_step=resume_step + 1)
