"""Shards of WebDataset and parquet files, made for a test."""

import json
import pathlib
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from image_bytes import jpeg
from made_sources import add_file


def picture(seed: int) -> bytes:
  """A JPEG that differs for each seed."""
  return jpeg(np.random.default_rng(seed).integers(0, 256, (8, 8, 3)))


def shard(path: pathlib.Path, *samples: dict[str, bytes | str | dict]) -> pathlib.Path:
  """A tar of samples 000000, 000001, …: {'jpg': bytes, 'cls': '7', 'json': {…}} in this order."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with tarfile.open(path, 'w') as tar:
    for number, sample in enumerate(samples):
      for part, content in sample.items():
        text = json.dumps(content) if isinstance(content, dict) else content
        add_file(tar, f'{number:06}.{part}', text.encode() if isinstance(text, str) else text)
  return path


def parquet(path: pathlib.Path, columns: dict, features: dict | None = None, **options) -> pathlib.Path:
  """A parquet file; `features` are Hugging Face's, in the metadata."""
  table = pa.table(columns)
  if features:
    metadata = {'huggingface': json.dumps({'info': {'features': features}})}
    table = table.replace_schema_metadata(metadata)
  path.parent.mkdir(parents=True, exist_ok=True)
  pq.write_table(table, path, **options)
  return path
