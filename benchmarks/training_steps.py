"""The training steps that train_step.py and small_model.py time, as functions that run one step."""

import dataclasses
import resource
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from contenders import Work

if TYPE_CHECKING:
  from vit_jax.config import Config


def process_peak() -> float:
  """The bytes that this process has had at once."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclasses.dataclass(frozen=True)
class Step:
  """A training step of a contender.

  Attributes:
    run: runs a step and waits for it.
    text: what it is, with the versions of its libraries.
    peak: gives the bytes that the process, or its GPU's memory, has held at once.
  """

  run: Callable[[], object]
  text: str
  peak: Callable[[], float] = process_peak


def ours(config: Callable[[], 'Config'], *, images: int, classes: int, keep: bool = True) -> Step:
  """vit_jax's training step on a batch in memory.

  Args:
    config: makes the run's config.
    images: of the data set.
    classes: of the head.
    keep: whether freed memory is kept, as a command does.
  """
  if keep:
    from vit_jax.foundation import allocator

    allocator.keep_freed_memory()
  import jax
  import numpy as np

  from vit_jax.training.run import Dataset, Run

  program = Run(config(), Dataset(images, num_classes=classes)).program
  begin = time.perf_counter()
  step = program.step.lower(program.state, program.batch, {}).compile()
  seconds = time.perf_counter() - begin
  temporary = step.memory_analysis().temp_size_in_bytes / 2**20
  state = program.init(np.uint32(0))
  rng = np.random.default_rng(0)
  batch = {
    'image': rng.integers(0, 256, program.batch['image'].shape, dtype=np.uint8),
    'label': rng.integers(0, classes, program.batch['label'].shape).astype(np.int32),
  }
  batch = jax.tree.map(lambda x, leaf: jax.device_put(x, leaf.sharding), batch, program.batch)

  def run() -> None:
    nonlocal state
    state, _ = step(state, batch, {})
    jax.block_until_ready(state)

  device = jax.local_devices()[0]
  text = f'jax {jax.__version__}, {device.device_kind}, compiled in {seconds:.1f} s, {temporary:.0f} MiB of temporaries'
  if device.platform == 'gpu':
    return Step(run, text, lambda: device.memory_stats()['peak_bytes_in_use'])
  return Step(run, text)


def peer(
  model: Any,
  *,
  compiled: bool,
  batch_size: int,
  image_size: int,
  classes: int,
  weight_decay: float,
  label_smoothing: float = 0.0,
  device: str = 'cpu',
  bfloat16: bool = False,
) -> Step:
  """The step of a model on PyTorch, with torch.optim.AdamW, on a batch in memory.

  Args:
    model: a torch.nn.Module of images (batch, 3, height, width), whose output is the logits or has them.
    compiled: whether torch.compile compiles it.
    batch_size, image_size, classes: of the batch.
    weight_decay, label_smoothing: of the training.
    device: 'cpu' or 'cuda'.
    bfloat16: whether products are of bfloat16, by autocast; parameters and moments stay float32.
  """
  import torch

  model = model.train().to(device)
  function = torch.compile(model) if compiled else model
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=1e-3, weight_decay=weight_decay, fused=device == 'cuda'
  )
  images = torch.randint(0, 256, (batch_size, 3, image_size, image_size), dtype=torch.uint8, device=device)
  labels = torch.randint(0, classes, (batch_size,), device=device)

  def run() -> None:
    optimizer.zero_grad()
    with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
      output = function(images.float() / 127.5 - 1)
      logits = output if isinstance(output, torch.Tensor) else output.logits
      loss = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if device == 'cuda':
      torch.cuda.synchronize()

  text = f'torch {torch.__version__}'
  return Step(run, text, torch.cuda.max_memory_allocated) if device == 'cuda' else Step(run, text)


def timed(step: Step) -> tuple[Mapping[str, str], Work]:
  """A step as `contenders.serve` takes it: its figures are seconds a step, and the peak memory in MiB."""

  def work(steps: int) -> dict[str, float]:
    begin = time.perf_counter()
    for _ in range(steps):
      step.run()
    return {'seconds': (time.perf_counter() - begin) / steps, 'peak': step.peak() / 2**20}

  work(2)
  return {'text': step.text}, work
