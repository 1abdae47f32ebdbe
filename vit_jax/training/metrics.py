"""Where a run's numbers go: `metrics.jsonl` and TensorBoard, and how fast it is."""

import json
import pathlib
import time

import jax
import tensorboardX

# bf16 peak of one JAX device in FLOP/s, by `device_kind` (v2, v3: a core; from v4 on: a chip).
PEAK_FLOPS = {
  'TPU v2': 22.5e12,
  'TPU v3': 61.5e12,
  'TPU v4': 275e12,
  'TPU v5 lite': 197e12,
  'TPU v5': 459e12,
  'TPU v6 lite': 918e12,
  'NVIDIA A100-SXM4-40GB': 312e12,
  'NVIDIA A100-SXM4-80GB': 312e12,
  'NVIDIA H100 80GB HBM3': 989e12,
  'NVIDIA H200': 989e12,
}


class MetricsLog:
  """Appends a line a logged step to `metrics.jsonl`, and the same numbers to TensorBoard, on process 0.

  A resumed run continues where its checkpoint was: later lines, which it will compute again, are
  dropped, and so is a line that a kill cut short.
  """

  def __init__(self, workdir: pathlib.Path, resume_step: int):
    self._writes = jax.process_index() == 0
    if not self._writes:
      return
    path = workdir / 'metrics.jsonl'
    kept = [line for line in read_metrics(workdir) if line['step'] <= resume_step]
    partial = path.with_suffix('.jsonl.partial')
    partial.write_text(''.join(json.dumps(line) + '\n' for line in kept))
    partial.replace(path)
    self._file = path.open('a', buffering=1)
    self._board = tensorboardX.SummaryWriter(str(workdir / 'tensorboard'), purge_step=resume_step + 1)

  def write(self, step: int, values: dict[str, float]) -> None:
    if not self._writes:
      return
    self._file.write(json.dumps({'step': step, **values}) + '\n')
    for name, value in values.items():
      self._board.add_scalar(name, value, step)
    self._board.flush()

  def close(self) -> None:
    if not self._writes:
      return
    self._file.close()
    self._board.close()


def read_metrics(workdir: pathlib.Path) -> list[dict[str, float]]:
  """The lines of a run's `metrics.jsonl` so far; a last line that was cut short is left out."""
  path = workdir / 'metrics.jsonl'
  lines = path.read_text().splitlines(keepends=True) if path.exists() else []
  return [json.loads(line) for line in lines if line.endswith('\n')]


class Speedometer:
  """Images per second, model FLOPs utilisation, time spent waiting for data, and time to the end.

  Time for evaluation, saving and printing is not training time: call `pause` around it.
  """

  def __init__(
    self, *, batch_size: int, flops_per_image: float, total_steps: int, device_kind: str, devices: int
  ):
    self._batch_size = batch_size
    self._flops_per_image = flops_per_image  # of a training step: forward and backward
    self._total_steps = total_steps
    peak = PEAK_FLOPS.get(device_kind)
    self._peak = peak * devices if peak else None
    self.restart()

  def restart(self) -> None:
    """Begins a new interval now."""
    self._begin = time.perf_counter()
    self._waited = 0.0
    self._steps = 0

  def waited(self, seconds: float) -> None:
    """Counts time that the loop stood still for a batch."""
    self._waited += seconds

  def stepped(self) -> None:
    self._steps += 1

  def read(self, step: int) -> dict[str, float]:
    """The metrics of the interval that ends at `step`; empty if no step was taken in it."""
    seconds = time.perf_counter() - self._begin
    if not self._steps:
      return {}
    rate = self._steps * self._batch_size / seconds
    values = {
      'perf/images_per_second': rate,
      'perf/step_ms': 1000 * seconds / self._steps,
      'perf/data_wait': self._waited / seconds,
      'perf/eta_s': (self._total_steps - step) * seconds / self._steps,
    }
    if self._peak:
      values['perf/mfu'] = rate * self._flops_per_image / self._peak
    return values
