"""The time of small programs, computed by hand: links, what runs meanwhile, loops."""

from types import SimpleNamespace

import pytest

from vit_jax.parallel.hardware import Hardware
from vit_jax.plan import hlo, timing

# Round numbers, so that each expectation can be read: bytes/s of memory, link and network, cycles/s.
MEMORY, LINK, NETWORK, CLOCK = 1000e9, 100e9, 10e9, 1e9
HOP = 1e-6  # seconds from a chip to the next one
MIB = 2**20


def _devices(shape, cores=1, slices=1):
  """Devices in the order of a mesh over slices, y, x, cores: 'x' runs faster than 'y'."""
  return [
    SimpleNamespace(coords=(x, y, 0), core_on_chip=core, slice_index=s)
    for s in range(slices)
    for y in range(shape[1])
    for x in range(shape[0])
    for core in range(cores)
  ]


def _estimate(entry, devices, *, ring=0, before=''):
  lines = '\n'.join('  ' + line for line in entry)
  module = hlo.parse(f'{before}\nENTRY %main (x: f32[]) -> f32[] {{\n{lines}\n}}\n')
  hardware = Hardware(1e14, 16e9, MEMORY, CLOCK, LINK, ring, NETWORK)
  return timing.estimate(module, devices, hardware)


def _op(opcode, groups, shape=f'f32[{MIB // 4}]{{0}}', name='r', operand='x'):
  return f'%{name} = {shape} {opcode}(%{operand}), channel_id=7, replica_groups={groups}, dimensions={{0}}'


def _compute(cycles, name):
  return f'%{name} = f32[8]{{0}} fusion(%x), calls=%f, backend_config={{"estimated_cycles":"{cycles}"}}'


FOUR, LINE = '{{0,1,2,3}}', _devices((4, 1))
SQUARE, SLICES = _devices((4, 4)), _devices((2, 2), slices=2)
CORES = _devices((2, 2), cores=2)  # a v3-8: chips of two cores


@pytest.mark.parametrize(
  ('opcode', 'groups', 'devices', 'ring', 'expected'),
  [
    # Three quarters of the MiB have to come in; the whole is counted, over two links, and half the way round.
    ('all-gather', FOUR, LINE, 4, MIB / (2 * LINK) + 3 / 2 * HOP),
    ('all-gather', FOUR, LINE, 0, MIB / LINK + 3 / 2 * HOP),  # a line of chips has one way
    ('all-gather', "mesh['a'=8] {'a'}", CORES, 0, MIB / (2 * LINK) + HOP),  # once for both cores
    ('all-gather', '{{0,2,4,6},{1,3,5,7}}', CORES, 0, 2 * MIB / (2 * LINK) + HOP),  # cores share the links
    ('all-reduce', '[1,16]<=[16]', SQUARE, 4, 2 * MIB / (2 * 2 * LINK) + (3 + 3) / 2 * HOP),  # two gathers
    ('all-reduce', '[4,4]<=[16]', SQUARE, 4, 2 * MIB / (2 * LINK) + 3 / 2 * HOP),  # rows: their links only
    ('all-reduce', '[4,4]<=[4,4]T(1,0)', SQUARE, 4, 2 * MIB / (2 * LINK) + 3 / 2 * HOP),  # columns
    ('all-to-all', FOUR, LINE, 4, MIB * 4 / 4 / (2 * LINK) + 3 / 2 * HOP),  # half of each part half way round
    ('all-reduce', '{{0,1},{2,3},{4,5},{6,7}}', CORES, 0, 2 * MIB / MEMORY),  # within a chip
    ('all-reduce', '{{0},{1}}', _devices((2, 1)), 0, 0),
    # Between chips of the same place no links at all; between all, each of four chips sends a quarter, and then
    # two links within the slice do.
    ('all-reduce', '{{0,4},{1,5},{2,6},{3,7}}', SLICES, 0, 2 * MIB / NETWORK),
    ('all-reduce', '[1,8]<=[8]', SLICES, 0, 2 * MIB / 4 / NETWORK + 2 * MIB / (2 * LINK) + HOP),
  ],
)
def test_collective_takes_the_time_of_its_links(opcode, groups, devices, ring, expected):
  estimate = _estimate([_op(opcode, groups)], devices, ring=ring)
  assert estimate.exposed == estimate.seconds == pytest.approx(expected)
  traffic = estimate.traffic[opcode]
  assert (traffic.count, traffic.bytes, traffic.seconds) == (1, MIB, estimate.exposed)


GATHER_SECONDS = MIB / (2 * LINK) + 3 / 2 * HOP  # of four chips in a ring, about 6.7 microseconds


@pytest.mark.parametrize(
  ('pairs', 'devices', 'ring', 'expected'),
  [
    ('{{0,1},{1,2},{2,3}}', LINE, 0, MIB / LINK + HOP),
    ('{{0,1},{1,2},{2,3},{3,0}}', LINE, 0, 3 * (MIB / LINK + HOP)),  # the last one goes all the way back
    ('{{0,1},{1,2},{2,3},{3,0}}', LINE, 4, MIB / LINK + HOP),
    ('{{0,2}}', LINE, 4, 2 * (MIB / LINK + HOP)),
    ('{{0,1},{1,0}}', _devices((1, 1), slices=2), 0, MIB / NETWORK),
    ('{{0,1},{1,0}}', _devices((1, 1), cores=2), 0, MIB / MEMORY),
  ],
)
def test_permutation_takes_as_long_as_its_longest_way(pairs, devices, ring, expected):
  line = f'%r = f32[{MIB // 4}]{{0}} collective-permute(%x), source_target_pairs={pairs}, channel_id=1'
  assert _estimate([line], devices, ring=ring).exposed == pytest.approx(expected)


def test_start_of_an_all_reduce_has_its_result_alone():
  pair = f'(f32[{MIB // 8}]{{0}}, f32[{MIB // 8}]{{0}})'
  done = '%done = (f32[8]{0}, f32[8]{0}) all-reduce-done(%start)'
  estimate = _estimate([_op('all-reduce-start', FOUR, pair, 'start'), done], LINE, ring=4)
  assert estimate.exposed == pytest.approx(2 * MIB / (2 * LINK) + 3 / 2 * HOP)


SCATTERED = _op('reduce-scatter', FOUR, f'f32[{MIB // 16}]{{0}}')
FUSED_SCATTER = '%r = f32[65536]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter'


@pytest.mark.parametrize('line', [SCATTERED, FUSED_SCATTER], ids=['of its own', 'fused'])
def test_reduce_scatter_takes_as_long_as_the_gather_of_the_whole(line):
  """TPU v2 and v3 have it as a fusion without cycles of an all-reduce and a slice."""
  fused = """
%all-reduce-scatter (input: f32[262144]) -> f32[65536] {
  %all-reduce.3 = f32[262144]{0} all-reduce(%input), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %dynamic-slice = f32[65536]{0} dynamic-slice(%all-reduce.3, %offset), dynamic_slice_sizes={65536}
}
"""
  estimate = _estimate([line], LINE, ring=4, before=fused)
  assert estimate.exposed == pytest.approx(GATHER_SECONDS)
  assert set(estimate.traffic) == {'reduce-scatter'} and estimate.memory == 0


CROSSING = (
  '%send{0} = (f32[{1}]{{0}}, u32[], token[]) send(%x, %after), channel_id=1, is_host_transfer=true, {2}',
  '%recv{0} = (f32[{1}]{{0}}, u32[], token[]) recv(%after), channel_id=2, is_host_transfer=true, {2}',
  '%send-done{0} = token[] send-done(%send{0}), channel_id=1, is_host_transfer=true',
  '%recv-done{0} = (f32[{1}]{{0}}, token[]) recv-done(%recv{0}), channel_id=2, is_host_transfer=true',
)


def _crossing(name, kind='ALL_REDUCE'):
  """The four instructions by which a MiB crosses slices, as libtpu 0.0.51 writes them."""
  attributes = (
    f'frontend_attributes={{_xla_host_transfer_rendezvous="all-reduce.{name}_0",'
    f'_xla_megascale_reduce_operation="SUM",_xla_megascale_transfer_type="{kind}"}}'
  )
  return [line.format(name, MIB // 4, attributes) for line in CROSSING]


def test_what_crosses_slices_takes_turns_on_the_network_while_the_device_computes():
  (send, recv, sent, received), second = _crossing('a'), _crossing('b')
  computing = 20_000 / CLOCK
  entry = [send, recv, _compute(20_000, 'c'), second[0], second[1], sent, received, second[2], second[3]]
  estimate = _estimate(entry, _devices((2, 1), slices=2))
  # Of two slices each gives its array once; the second one waits for the network, not for the computation.
  assert estimate.compute == computing
  assert estimate.exposed == pytest.approx(2 * MIB / NETWORK - computing)
  traffic = estimate.traffic['all-reduce between slices']
  assert (traffic.count, traffic.bytes) == (2, 2 * MIB)
  four = _estimate(_crossing('a'), _devices((2, 1), slices=4))
  assert four.exposed == pytest.approx(2 * 3 / 4 * MIB / NETWORK)  # a ring of four
  gathered = _estimate(_crossing('a', 'ALL_GATHER'), _devices((2, 1), slices=4))
  assert gathered.exposed == pytest.approx(3 * MIB / NETWORK)


STARTED = f'(f32[{MIB // 16}]{{0}}, f32[{MIB // 4}]{{0}}, u32[], u32[])'


@pytest.mark.parametrize('cycles', [0, 4000, 20_000])
def test_computation_hides_a_gather_that_runs_meanwhile(cycles):
  entry = [
    _op('all-gather-start', '{{0,1,2,3}}', STARTED, 'start'),
    _compute(cycles, 'a'),
    '%done = f32[8]{0} all-gather-done(%start)',
    _compute(1000, 'b'),
  ]
  estimate = _estimate(entry, _devices((4, 1)), ring=4)
  assert estimate.compute == pytest.approx((cycles + 1000) / CLOCK)
  assert estimate.exposed == pytest.approx(max(0.0, GATHER_SECONDS - cycles / CLOCK))
  assert estimate.traffic['all-gather'].seconds == pytest.approx(GATHER_SECONDS)


def test_two_gathers_use_the_links_one_after_the_other():
  entry = [
    _op('all-gather-start', '{{0,1,2,3}}', STARTED, 'first'),
    _op('all-gather-start', '{{0,1,2,3}}', STARTED, 'second'),
    _compute(1000, 'a'),
    '%one = f32[8]{0} all-gather-done(%first)',
    '%two = f32[8]{0} all-gather-done(%second)',
  ]
  estimate = _estimate(entry, _devices((4, 1)), ring=4)
  assert estimate.seconds == pytest.approx(2 * GATHER_SECONDS)
  assert estimate.exposed == pytest.approx(2 * GATHER_SECONDS - 1000 / CLOCK)


def test_fusions_that_start_and_end_a_gather_are_matched_by_their_channel():
  """TPU v5e has asynchronous collectives so."""
  fused = f"""
%begin (p: f32[65536]) -> (f32[65536], f32[262144], s32[2], u32[]) {{
  %all-gather.1 = f32[{MIB // 4}]{{0}} all-gather(%p), channel_id=155, replica_groups={{{{0,1,2,3}}}}
  ROOT %c = (f32[65536]{{0}}, f32[262144]{{0}}, s32[2]{{0}}, u32[]) custom-call(%all-gather.1), \
custom_call_target="AsyncCollectiveStart"
}}
%end (p: f32[65536], q: f32[262144]) -> f32[262144] {{
  %all-gather.2 = f32[{MIB // 4}]{{0}} all-gather(%p), channel_id=155, replica_groups={{{{0,1,2,3}}}}
  ROOT %d = f32[262144]{{0}} custom-call(%p, %all-gather.2), custom_call_target="AsyncCollectiveDone"
}}
"""
  entry = [
    f'%async-collective-start = (f32[{MIB // 16}]{{0}}, f32[{MIB // 4}]{{0}}, u32[]) fusion(%x), '
    'kind=kCustom, calls=%begin',
    _compute(4000, 'a'),
    f'%async-collective-done = f32[{MIB // 4}]{{0}} fusion(%g), kind=kCustom, calls=%end',
  ]
  estimate = _estimate(entry, _devices((4, 1)), ring=4, before=fused)
  assert estimate.exposed == pytest.approx(GATHER_SECONDS - 4000 / CLOCK)
  assert estimate.traffic['all-gather'].count == 1 and estimate.memory == 0


@pytest.mark.parametrize('prepared', [True, False], ids=['v7x', 'v6e'])
def test_gather_of_the_sparse_core_begins_when_it_has_its_operand(prepared):
  """TPU v7x prepares it first, `async-start()`, and an `async-update` brings what it gathers."""
  called = f"""
%on_sparse_core (p: f32[65536]) -> f32[262144] {{
  %p = f32[65536]{{0}} parameter(0)
  ROOT %all-gather.5 = f32[{MIB // 4}]{{0}} all-gather(%p), channel_id=9, replica_groups={{{{0,1,2,3}}}}
}}, execution_thread="sparsecore"
%async_computation (q: f32[65536]) -> f32[262144] {{
  %q = f32[65536]{{0}} parameter(0)
  ROOT %call = f32[{MIB // 4}]{{0}} custom-call(%q), custom_call_target="k", called_computations={{%on_sparse_core}}
}}, execution_thread="sparsecore"
"""
  state = f'((f32[{MIB // 16}]{{0}}), f32[{MIB // 4}]{{0}}, (s32[8192], s32[69]{{0:S(11)}}))'
  begin = f'%start = ((), (), (s32[8192])) async-start({"" if prepared else "%x"}), calls=%async_computation'
  gather = [f'%update = {state} async-update(%start, %a)'] if prepared else []
  done = f'%done = f32[{MIB // 4}]{{0}} async-done(%{"update" if prepared else "start"})'
  entry = [begin, _compute(1000, 'a'), *gather, _compute(4000, 'b'), done]
  estimate = _estimate(entry, LINE, ring=4, before=called)
  hidden = (4000 if prepared else 5000) / CLOCK
  assert estimate.exposed == pytest.approx(GATHER_SECONDS - hidden)
  assert estimate.traffic['all-gather'].count == 1 and estimate.memory == estimate.copies == 0


@pytest.mark.parametrize('start', ['slice-start(%x), slice={[0:9]}', 'async-start(%x), calls=%cut'])
def test_copies_between_memories_cost_what_the_computation_does_not_hide(start):
  entry = [
    # Two MiB are copied, and half a MiB is cut out of four.
    f'%copy-start = (f32[{MIB // 2}]{{0:S(1)}}, f32[{MIB // 2}]{{0}}, u32[]) copy-start(%x)',
    f'%slice-start = ((f32[{MIB}]{{0}}), f32[{MIB // 8}]{{0:S(1)}}, s32[]) {start}',
    _compute(1000, 'a'),
    f'%copy-done = f32[{MIB // 2}]{{0:S(1)}} copy-done(%copy-start)',
    f'%slice-done = f32[{MIB // 8}]{{0:S(1)}} {start.partition("-")[0]}-done(%slice-start)',
  ]
  cut = f"""
%cut (p: f32[{MIB}]) -> f32[{MIB // 8}] {{
  %p = f32[{MIB}]{{0}} parameter(0)
  ROOT %slice.1 = f32[{MIB // 8}]{{0:S(1)}} slice(%p), slice={{[0:9]}}
}}
"""
  estimate = _estimate(entry, _devices((1, 1)), before=cut)
  assert estimate.seconds == pytest.approx(2.5 * MIB / MEMORY)
  assert estimate.copies == pytest.approx(2.5 * MIB / MEMORY - 1000 / CLOCK)
  assert estimate.exposed == 0


def test_operation_without_cycles_costs_the_bytes_that_it_reads_and_writes():
  entry = [
    f'%big = f32[{MIB // 4}]{{0}} parameter(0)',
    '%part = f32[256]{0} parameter(1)',
    f'%copy.1 = f32[{MIB // 4}]{{0}} copy(%big)',
    '%slice.1 = f32[512]{0} slice(%big), slice={[0:512]}',
    f'%update = f32[{MIB // 4}]{{0}} dynamic-update-slice(%big, %part, %offset)',  # in place
    '%name = f32[512,512]{1,0} bitcast(%copy.1)',
  ]
  estimate = _estimate(entry, _devices((1, 1)))
  assert estimate.memory == pytest.approx((2 * MIB + 2 * 2048 + 2 * 1024) / MEMORY)
  assert estimate.seconds == estimate.memory


def test_custom_kernels_are_counted_as_unknown():
  kernel = '%k = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call"'
  buffer = '%b = f32[8]{0} custom-call(), custom_call_target="AllocateBuffer"'
  estimate = _estimate([kernel, buffer], _devices((1, 1)))
  assert estimate.unknown == 1 and estimate.seconds == 0


def test_loop_costs_as_often_as_it_runs():

  def counting(name: str, bound: int, step: int, *body: str) -> str:
    """The condition and the body of a loop from 0 to the bound."""
    lines = '\n'.join(f'  {line}' for line in body)
    return f"""
%{name}_condition (p: (s32[])) -> pred[] {{
  %bound = s32[] constant({bound})
  %at = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%at, %bound), direction=LT
}}
%{name} (p: (s32[])) -> (s32[]) {{
  %step = s32[] constant({step})
  %i = s32[] get-tuple-element(%p), index=0
{lines}
  %next = s32[] add(%i, %step), backend_config={{"estimated_cycles":"0"}}
  ROOT %t = (s32[]) tuple(%next)
}}"""

  loop = '%{0}_loop = (s32[]) while(%t), condition=%{0}_condition, body=%{0}'
  reducing = _op('all-reduce', FOUR, name='sum')
  loops = counting('inner', 8, 2, _compute(100, 'product'))
  loops += counting('outer', 3, 1, _compute(1000, 'rest'), reducing, loop.format('inner'))
  estimate = _estimate([_compute(10, 'first'), loop.format('outer')], LINE, ring=4, before=loops)
  assert estimate.compute == pytest.approx((10 + 3 * (1000 + 8 / 2 * 100)) / CLOCK)
  reduced = 2 * MIB / (2 * LINK) + 3 / 2 * HOP
  assert estimate.exposed == pytest.approx(3 * reduced)
  traffic = estimate.traffic['all-reduce']
  assert (traffic.count, traffic.bytes, traffic.seconds) == (3, 3 * MIB, pytest.approx(3 * reduced))


def test_branches_of_which_one_runs_cost_their_mean():
  branches = ''.join(
    f"""
%{name} (p: f32[8]) -> f32[8] {{
  {_compute(cycles, name + '_product')}
}}"""
    for name, cycles in (('small', 100), ('large', 400), ('middle', 190))
  )
  chosen = (
    '%chosen = f32[8]{0} conditional(%which, %x, %x, %x), branch_computations={%small, %large, %middle}'
  )
  assert _estimate([chosen], LINE, before=branches).compute == pytest.approx(230 / CLOCK)
  either = '%chosen = f32[8]{0} conditional(%p, %x, %x), true_computation=%small, false_computation=%large'
  assert _estimate([either], LINE, before=branches).compute == pytest.approx(250 / CLOCK)
