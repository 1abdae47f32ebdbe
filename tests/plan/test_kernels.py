"""Cycles of kernels, from excerpts of what libtpu 0.0.51 writes down."""

import pathlib
import types

import jax
import pytest

from vit_jax.parallel.hardware import Hardware
from vit_jax.plan import hlo, kernels, timing

CALL = (
  '%short_attention_forward.{} = bf16[64,197,1024]{{2,1,0:T(8,128)(2,1)}} custom-call(%q), '
  'custom_call_target="tpu_custom_call", operand_layout_constraints={{bf16[64,197,1024]{{2,1,0}}}}'
)
BEFORE = '     0   :  { %s12 = smov.u32 0  ;;  %s0 = inlined_call_operand.hbm [shape: bf16[64,197,1024]] }\n'
LOOP = """   0x4 LB: > { %s22_s19 = sadd.s32 1, %s13582_s16 }
   0xc   : > { %s31_s26 = sor.u32 %s30_s22, %s29_s25  ;;  %p11 = scmp.ge.s32.totalorder %s18, 128 }
0x1aff PF: > { %p10_p12 = scmp.ge.s32.totalorder %s13_s18, 130 /* loop exit test */  ;;  %s24 = smov.u32 %s13 }
"""
PROGRAM = f"""ENTRY %main (q: bf16[64,197,1024]) -> bf16[64,197,1024] {{
  %q = bf16[64,197,1024]{{2,1,0}} parameter(0)
  {CALL.format(1)}
  ROOT {CALL.format(2)}
}}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.setattr(timing, '_Network', lambda *_: None)  # no collective is in the program
  monkeypatch.setattr(kernels, '_folder', lambda: types.SimpleNamespace(name=str(tmp_path)))
  (tmp_path / '17-short_attention_forward.1-00-schedule-analysis_final_bundles.txt').write_text(
    f'Schedule analysis:\n\ttotal scheduled bundles:    4\n\t3.00 scheduled bundles (100.00%): {CALL.format(1)}\n'
  )
  return tmp_path


def _write(folder: pathlib.Path, bundles: str) -> None:
  (folder / '17-short_attention_forward.1-01-final_bundles.txt').write_text(bundles)


def _estimate(bandwidth: float) -> timing.Estimate:
  hardware = Hardware(1.0, memory_bandwidth=bandwidth, clock=10.0)
  return timing.estimate(hlo.parse(kernels.with_cycles(PROGRAM)), jax.devices()[:1], hardware)


def test_a_kernel_takes_its_bundles_as_often_as_its_loop_runs(folder):
  """Three bundles, 130 times; the second call is the same kernel, which is scheduled once."""
  _write(folder, BEFORE + LOOP)
  estimate = _estimate(1e12)
  assert estimate.seconds == estimate.kernels == 2 * 3 * 130 / 10 and estimate.unknown == 0


def test_a_kernel_takes_no_less_than_moving_its_operands(folder):
  _write(folder, BEFORE + LOOP)
  size = 64 * 197 * 1024 * 2
  assert _estimate(size / 100).kernels == 2 * (2 * 100)  # an operand and a result, each 100 seconds


@pytest.mark.parametrize('bundles', [None, BEFORE])
def test_a_kernel_without_a_schedule_or_its_loop_is_unknown_and_not_free(bundles, folder):
  if bundles:
    _write(folder, bundles)
  estimate = _estimate(1e12)
  assert estimate.unknown == 2 and estimate.seconds == 0


def test_schedules_are_forgotten(folder):
  _write(folder, BEFORE + LOOP)
  kernels.forget_schedules()
  assert not list(folder.iterdir()) and kernels.with_cycles(PROGRAM) == PROGRAM
