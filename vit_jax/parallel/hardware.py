"""The published speed and memory of one JAX device of each kind."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Hardware:
  """One JAX device: a core of a TPU v2, v3 or v7x, a chip of another TPU, or a GPU."""

  peak_flops: float  # FLOP/s of bfloat16 matrix products
  memory: float = 0  # bytes of HBM that a program may use (on a TPU, what its compiler reports); 0 if unknown
  memory_bandwidth: float = 0.0  # bytes/s of HBM
  clock: float = 0.0  # Hz of a TPU's matrix unit; 0 if unknown
  link_bandwidth: float = 0.0  # bytes/s of one inter-chip link in one direction; 0 if it has no such links
  ring: int = 0  # a dimension of the torus is a closed ring if this divides its size; 0 if it never is
  network_bandwidth: float = 0.0  # bytes/s of a device's share of the data centre's network, in one direction


_GIB = 2**30

# By `jax.Device.device_kind`; the numbers are in the order of the attributes above. Sources: the TPU pages of
# Google Cloud's documentation; for v2 and v3 Norrie et al., 'The design process for Google's training chips'
# (IEEE Micro 2021); NVIDIA's data sheets. No clock of v7x is published: it is the one at which its core does the
# published FLOP/s by the 524,288 FLOPs of a cycle that v6e's has (libtpu 0.0.42 counts 492,000 in a large product).
_KINDS = {
  'TPU v2': Hardware(22.5e12, 7.48 * _GIB, 350e9, 700e6, 62e9, 16, 1.5e9),
  'TPU v3': Hardware(61.5e12, 15.48 * _GIB, 450e9, 940e6, 82e9, 32, 1.5e9),
  'TPU v4': Hardware(275e12, 30.75 * _GIB, 1228e9, 1050e6, 50e9, 4, 6.2e9),
  'TPU v5 lite': Hardware(197e12, 15.75 * _GIB, 819e9, 1500e6, 50e9, 16, 3.1e9),
  'TPU v5': Hardware(459e12, 95.73 * _GIB, 2765e9, 1750e6, 100e9, 4, 6.2e9),
  'TPU v6 lite': Hardware(918e12, 31.24 * _GIB, 1638e9, 1750e6, 100e9, 16, 12.5e9),
  'TPU7x': Hardware(1153.5e12, 94.74 * _GIB, 3690e9, 2200e6, 100e9, 4, 6.2e9),
  'NVIDIA A100-SXM4-40GB': Hardware(312e12, 0, 1555e9),
  'NVIDIA A100-SXM4-80GB': Hardware(312e12, 0, 2039e9),
  'NVIDIA H100 80GB HBM3': Hardware(989e12, 0, 3350e9),
  'NVIDIA H200': Hardware(989e12, 0, 4800e9),
}


def of(device_kind: str) -> Hardware | None:
  """The figures of a device of this kind; None if unknown."""
  return _KINDS.get(device_kind)
