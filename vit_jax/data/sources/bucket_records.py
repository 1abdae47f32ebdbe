"""Records of array_record files in buckets: one request for each record, of no more than its bytes.

The array_record library reads local files (and Google's buckets with credentials only). Its format is Riegeli's: a
file of 64 KiB blocks, each with a header of 24 bytes, through which chunks of records run; then a footer with the
offset of each chunk; then a last block with the offset of the footer.
"""

import bisect
import itertools
import struct
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from vit_jax.foundation.buckets import Bucket, missing

_BLOCK, _BLOCK_HEADER = 64 * 1024, 24
# Hash of the header, bytes, hash of them, kind and number of records, bytes of the records decoded.
_CHUNK_HEADER = struct.Struct('<QQQQQ')
_MAGIC = 0x71930E704FDAE05E  # of array_record's last block
_CODECS = {ord('b'): 'brotli', ord('z'): 'zstd'}


class Span(NamedTuple):
  """Some records of a file: `take` of them from number `skip` on."""

  address: str
  skip: int
  take: int


class _Index(NamedTuple):
  """Where a file's chunks begin, with the end of the last one; and how many records are before each.

  `first_records` is None where each chunk has one record, as `vit_jax.prepare` and TFDS write them.
  """

  offsets: np.ndarray  # uint64 (chunks + 1,)
  first_records: np.ndarray | None  # uint64 (chunks + 1,)


class BucketRecords:
  """The records of spans, one after another: a sequence of bytes that threads may share.

  A file's index is read with its first record, some 13 bytes a record; 8 of them are kept.
  """

  def __init__(self, bucket: Bucket, spans: Sequence[Span]):
    self._bucket, self._spans = bucket, list(spans)
    self._ends = list(itertools.accumulate(span.take for span in spans))
    self._indices: list[_Index | None] = [None] * len(self._spans)
    self._locks = [threading.Lock() for _ in self._spans]

  def __len__(self) -> int:
    return self._ends[-1] if self._ends else 0

  def __getitem__(self, number: int) -> bytes:
    """Raises UserError where the file is not there or the bucket out of reach; ValueError where it is damaged."""
    place = bisect.bisect_right(self._ends, number)
    span = self._spans[place]
    record = number - self._ends[place] + span.take + span.skip
    index = self._index(place)
    chunk = record
    if index.first_records is not None:
      chunk = int(np.searchsorted(index.first_records, record, side='right')) - 1
      record -= int(index.first_records[chunk])
    if chunk >= len(index.offsets) - 1:
      raise ValueError(f'{span.address} has fewer records')
    first, last = int(index.offsets[chunk]), int(index.offsets[chunk + 1])
    records = _records(_payload(self._bucket.read(span.address, first, last), first))
    return records[0 if index.first_records is None else record]

  def _index(self, place: int) -> _Index:
    with self._locks[place]:
      index = self._indices[place]
      if index is None:
        index = self._indices[place] = read_index(self._bucket, self._spans[place].address)
      return index


def read_index(bucket: Bucket, address: str) -> _Index:
  """The index of an array_record file; raises as `BucketRecords.__getitem__`."""
  entry = bucket.entry(address)
  if entry is None:
    raise missing(address)
  end = entry.size - _BLOCK
  if entry.size % _BLOCK or end < _BLOCK:
    raise ValueError(f'it is no array_record file of {entry.size:,} bytes')
  last = _varints(_records(_payload(bucket.read(address, end, entry.size), end))[0])
  if len(last) != 4 or last[3] != _MAGIC or not 0 < last[1] < end:
    raise ValueError('it does not end as an array_record file')
  footer = int(last[1])
  _, *chunks = _records(_payload(bucket.read(address, footer, end), footer))  # the first one has the options
  fields = _varints(b''.join(chunks)).reshape(-1, 6)  # tag and value of: offset, decoded bytes, records
  if (fields[:, ::2] != (0x08, 0x10, 0x18)).any():
    raise ValueError('its footer has unknown fields')
  offsets = np.append(fields[:, 1], np.uint64(footer))
  if (fields[:, 5] == 1).all():
    return _Index(offsets, None)
  return _Index(offsets, np.concatenate([[np.uint64(0)], np.cumsum(fields[:, 5], dtype=np.uint64)]))


def _payload(content: bytes, first: int) -> bytes:
  """Bytes of a file from offset `first` on, without the headers of blocks."""
  start = -first % _BLOCK
  if start >= len(content):
    return content
  blocks = range(start, len(content), _BLOCK)
  return content[:start] + b''.join(content[at + _BLOCK_HEADER : at + _BLOCK] for at in blocks)


def _records(chunk: bytes) -> list[bytes]:
  """The records of the chunk that some bytes begin with."""
  if len(chunk) < _CHUNK_HEADER.size:
    raise ValueError('a chunk of records is cut off')
  _, size, _, kind_and_count, decoded = _CHUNK_HEADER.unpack_from(chunk)
  data = memoryview(chunk)[_CHUNK_HEADER.size :][:size]
  if kind_and_count & 255 != ord('r') or len(data) != size or not size:
    raise ValueError('a chunk of records is damaged, or was written with the option transpose')
  length, start = _varint(data, 1)
  sizes = _varints(_decompressed(data[0], data[start : start + length]))
  values = _decompressed(data[0], data[start + length :])
  ends = np.cumsum(sizes)
  if len(sizes) != kind_and_count >> 8 or len(values) != decoded or (len(ends) and ends[-1] != decoded):
    raise ValueError('a chunk of records is damaged')
  return [values[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]


def _decompressed(compression: int, data: memoryview) -> bytes:
  if not compression:
    return bytes(data)
  if compression not in _CODECS:
    raise ValueError(f'its compression {chr(compression)!r} is unknown')
  size, start = _varint(data, 0)
  if size > len(data) * 10_000:
    raise ValueError('a compressed chunk is damaged')
  return pa.decompress(bytes(data[start:]), size, _CODECS[compression], asbytes=True)


def _varint(data: memoryview, start: int) -> tuple[int, int]:
  """A number of seven bits a byte, and where it ends."""
  value = 0
  for place, byte in enumerate(data[start : start + 10]):
    value |= (byte & 127) << 7 * place
    if byte < 128:
      return value, start + place + 1
  raise ValueError('a chunk of records is damaged')


def _varints(data: bytes) -> np.ndarray:
  """uint64 (n,): the numbers that some bytes consist of."""
  content = np.frombuffer(data, np.uint8)
  ends = np.flatnonzero(content < 128)
  if not len(content):
    return np.zeros(0, np.uint64)
  if not len(ends) or ends[-1] != len(content) - 1:
    raise ValueError('a chunk of records is damaged')
  starts = np.concatenate([[0], ends[:-1] + 1])
  if (ends - starts >= 10).any():
    raise ValueError('a chunk of records is damaged')
  places = np.arange(len(content)) - np.repeat(starts, ends - starts + 1)
  parts = (content & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
  return np.add.reduceat(parts, starts)
