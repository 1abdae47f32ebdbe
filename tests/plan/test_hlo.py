"""Reading compiled programs: lines that libtpu 0.0.51 wrote for v3-8, v5e:2x2 and v5e:4x4, shortened."""

import numpy as np
import pytest

from vit_jax.plan import hlo

# A scan of three products on v3-8, whose sum over two cores is a reduce-scatter.
SCAN = """\
HloModule jit_loop, is_scheduled=true, num_partitions=8

FileNames
1 "loop.py"

%all-reduce-scatter.clone.1 (input.2: bf16[128,512]) -> bf16[128,256] {
  %input.2 = bf16[128,512]{1,0:T(8,128)(2,1)} parameter(0)
  %all-reduce.3 = bf16[128,512]{1,0:T(8,128)(2,1)} all-reduce(%input.2), channel_id=1, \
replica_groups={{0,1},{2,3},{4,5},{6,7}}, use_global_device_ids=true, to_apply=%add.clone
  %constant.shard_id_table.2 = u32[8]{0:T(256)} constant({0, 1, 0, 1, 0, 1, 0, 1})
  ROOT %dynamic-slice.23 = bf16[128,256]{1,0:T(8,128)(2,1)} dynamic-slice(%all-reduce.3, %constant.45, \
%multiply.5), dynamic_slice_sizes={128,256}
}

%body.sunk (wide.param.2: (s32[], bf16[128,256], bf16[3,256,512], s32[])) -> (s32[], bf16[128,256]) {
  %constant.1..sunk = s32[]{:T(256)} constant(1)
  %wide.param.2 = (s32[]{:T(256)}, bf16[128,256]{1,0:T(8,128)(2,1)}) parameter(0)
  %get-tuple-element.47 = s32[]{:T(256)} get-tuple-element(%wide.param.2), index=0
  %copy.2 = s32[]{:T(256)S(6)} copy(%get-tuple-element.47), backend_config={"flag_configs":[]}
  %add.6 = s32[]{:T(256)} add(%copy.2, %constant.1..sunk), control-predecessors={%copy.2}
  %fusion.12 = bf16[128,512]{1,0:T(8,128)(2,1)} fusion(%get-tuple-element.48, /*index=1*/%copy.2), \
kind=kOutput, calls=%fused, backend_config={"window_config":{"estimated_cycles":"3022"}}
  %fusion.13 = bf16[128,256]{1,0:T(8,128)(2,1)} fusion(%fusion.12), kind=kCustom, \
calls=%all-reduce-scatter.clone.1
  ROOT %tuple.15 = (s32[]{:T(256)}, bf16[128,256]{1,0:T(8,128)(2,1)}) tuple(%add.6, %fusion.13)
}

%condition (wide.param.1: (s32[], bf16[128,256], bf16[3,256,512], s32[])) -> pred[] {
  %constant.5 = s32[]{:T(256)} constant(3)
  %wide.param.1 = (s32[]{:T(256)}, bf16[128,256]{1,0:T(8,128)(2,1)}) parameter(0)
  %get-tuple-element.27 = s32[]{:T(256)} get-tuple-element(%wide.param.1), index=0
  ROOT %lt.3 = pred[]{:T(1024)} compare(%get-tuple-element.27, %constant.5), direction=LT
}

ENTRY %main.3_spmd (param.2: bf16[128,512], param.3: bf16[3,256,512]) -> bf16[128,256] {
  %tuple.13 = (s32[]{:T(256)}, bf16[128,256]{1,0:T(8,128)(2,1)}) tuple(%copy.7, %fusion)
  %while.9 = (s32[]{:T(256)}, bf16[128,256]{1,0:T(8,128)(2,1)}) while(%tuple.13), condition=%condition, \
body=%body.sunk, metadata={op_name="jit(loop)/while" stack_frame_id=4}
  ROOT %get-tuple-element.17 = bf16[128,256]{1,0:T(8,128)(2,1)} get-tuple-element(%while.9), index=1
}
"""
# On v6e:1x1: the description of a kernel takes three lines, also behind a part of its result.
KERNEL = """\
ENTRY %main.1 (param: bf16[8,12,640,64]) -> f32[8,12,640] {
  %splash.1 = (f32[8,640,128]{2,1,0:T(8,128)}, f32[8,12,640]{2,1,0}) \
custom-call(%param, /*index=1*/%copy.2), \
custom_call_target="tpu_custom_call", operand_layout_constraints={bf16[8,12,640,64]{3,2,1,0}}, \
frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 640, \\"q_layout\\": 1}"
}}, metadata={op_name="jit(g)/pallas_call" stack_frame_id=7}, backend_config={"flag_configs":[]}
  %get-tuple-element.1 = f32[8,12,640]{2,1,0} get-tuple-element(%splash.1), index=1, \
frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 640, \\"q_layout\\": 1}"
}}, metadata={op_name="jit(g)/pallas_call" stack_frame_id=7}
  ROOT %copy.4 = f32[8,12,640]{1,2,0} copy(%get-tuple-element.1), \
backend_config={"window_config":{"estimated_cycles":"49800"}}
}
"""


def test_descriptions_of_kernels_are_left_out():
  kernel, part, root = hlo.parse(KERNEL).computations['main.1']
  assert kernel.opcode == 'custom-call' and kernel.operands == ('param', 'copy.2')
  assert 'tpu_custom_call' in kernel.attributes and 'op_name' in kernel.attributes
  assert part.attribute('index') == '1' and root.cycles == 49800


def test_parse_reads_computations_and_their_instructions():
  module = hlo.parse(SCAN)
  assert module.entry == 'main.3_spmd'
  assert set(module.computations) == {'all-reduce-scatter.clone.1', 'body.sunk', 'condition', 'main.3_spmd'}
  body = {i.name: i for i in module.computations['body.sunk']}
  assert [i.opcode for i in body.values()] == [
    *('constant', 'parameter', 'get-tuple-element', 'copy', 'add', 'fusion', 'fusion', 'tuple')
  ]
  product = body['fusion.12']
  assert product.operands == ('get-tuple-element.48', 'copy.2')
  assert product.cycles == 3022 and body['fusion.13'].cycles is None
  assert product.bytes == 128 * 512 * 2
  assert body['fusion.13'].attribute('calls') == 'all-reduce-scatter.clone.1'
  assert body['fusion.13'].attribute('body') is None
  assert body['tuple.15'].bytes == 4 + 128 * 256 * 2


@pytest.mark.parametrize(
  ('shape', 'expected'),
  [
    ('f32[]{:T(256)}', 4),
    ('pred[7]{0}', 7),
    ('s4[10]', 5),
    ('bf16[1,1024,16,64]{1,3,2,0:T(8,128)(2,1)S(1)}', 1024 * 16 * 64 * 2),
    ('(bf16[8,128]{1,0:T(8,128)(2,1)}, (f32[2,3]{1,0}, u32[]{:S(2)}))', 8 * 128 * 2 + 2 * 3 * 4 + 4),
    ('token[]', 0),
  ],
)
def test_shape_bytes_are_those_of_all_arrays(shape, expected):
  assert hlo.shape_bytes(shape) == expected


@pytest.mark.parametrize(
  ('shape', 'start', 'expected'),
  [
    ('((f32[512,512]{1,0}), f32[384,512]{1,0:T(8,128)S(1)}, s32[]{:S(2)})', True, 384 * 512 * 4),
    # Two arrays gathered at once: first the operands, then the results.
    ('((bf16[8,128], f32[4,128]), (bf16[32,128], f32[16,128]), u32[])', True, 32 * 128 * 2 + 16 * 128 * 4),
    ('(bf16[8,128], f32[4,128])', False, 8 * 128 * 2 + 4 * 128 * 4),
  ],
)
def test_payload_of_a_start_is_its_results_without_operands_and_flags(shape, start, expected):
  assert hlo.payload(shape, start=start) == expected


@pytest.mark.parametrize(
  ('written', 'expected'),
  [
    ('{{0,1},{2,3}}', [[0, 1], [2, 3]]),
    ('{{3,0,1,2}}', [[3, 0, 1, 2]]),
    ('{}', [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ('[2,4]<=[8]', np.arange(8).reshape(2, 4)),
    ('[4,2]<=[2,4]T(1,0)', [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ('[2,4]<=[2,2,2]T(1,0,2)', [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ("mesh['axis_0'=8] {'axis_0'}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ("mesh['a'=2,'b'=4] {'b'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ("mesh['a'=2,'b'=4] {'a'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ("mesh['a'=2,'one'=1,'b'=4] {'a','one'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    # The devices in another order, as in XLA's own tests.
    ("mesh['x'=2,'y'=2], device_ids=(0,2,1,3) {'y'}", [[0, 2], [1, 3]]),
    ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    # The outer and the inner factor of 4 = 2 x 2 devices along b.
    ("mesh['a'=2,'b'=4] {'b':(1)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ("mesh['a'=2,'b'=4] {'b':(2)2}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
  ],
)
def test_groups_in_every_notation(written, expected):
  line = f'%r = f32[8]{{0}} all-reduce(%x), replica_groups={written}, use_global_device_ids=true'
  (reduced,) = hlo.parse(f'ENTRY %main (x: f32[]) -> f32[] {{\n  {line}\n}}\n').computations['main']
  np.testing.assert_array_equal(hlo.groups(reduced, 8), expected)


def _trip_count(*changes: tuple[str, str]) -> int:
  """That of the loop of SCAN with these changes."""
  text = SCAN
  for old, new in changes:
    assert old in text
    text = text.replace(old, new)
  module = hlo.parse(text)
  return module.trip_count(next(i for i in module.computations[module.entry] if i.opcode == 'while'))


BY_TWOS = (
  ('constant(1)', 'constant(2)'),
  ('constant(3)', 'constant(8)'),
)  # as the compiler's own loops count
DRAWN = (  # the shares of mixup: repeated until accepted, by a condition without a counter
  ('op_name="jit(loop)/while"', 'op_name="jit(step)/jit(_beta)/jit(_gamma)/while"'),
  ('direction=LT', 'direction=NE'),
)


@pytest.mark.parametrize(('changes', 'expected'), [((), 3), (BY_TWOS, 4), (DRAWN, 1)])
def test_trip_count_is_the_bound_of_the_condition(changes, expected):
  assert _trip_count(*changes) == expected


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    (('constant(3)', 'parameter(1)'), r'the condition of the loop while\.9 is not'),
    (('add(%copy.2, %constant.1..sunk)', 'multiply(%copy.2, %copy.2)'), 'adds no constant to its counter'),
  ],
)
def test_loop_without_a_counter_below_a_constant_is_refused(change, said):
  with pytest.raises(ValueError, match=said):
    _trip_count(change)
