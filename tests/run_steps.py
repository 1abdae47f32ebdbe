"""Random batches for a program's step, and what a run logged."""

import json
import pathlib

import jax
import numpy as np

from vit_jax.training.step import Program


def batch(program: Program, seed: int, classes: int = 10) -> dict[str, jax.Array]:
  """Random images and labels, where the step wants them."""
  rng, image = np.random.default_rng(seed), program.batch['image']
  values = {
    'image': rng.integers(0, 256, image.shape, dtype=np.uint8),
    'label': rng.integers(0, classes, image.shape[:1]).astype(np.int32),
  }
  crops = {name: leaf for name, leaf in program.batch.items() if leaf.ndim == 5}
  values |= {name: rng.integers(0, 256, leaf.shape, dtype=np.uint8) for name, leaf in crops.items()}
  return {name: jax.device_put(value, program.batch[name].sharding) for name, value in values.items()}


def logged(workdir: pathlib.Path) -> list[dict]:
  """The lines of metrics.jsonl, speed apart."""
  read = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  return [{name: value for name, value in line.items() if not name.startswith('perf/')} for line in read]
