import asyncio
import collections
import errno
import functools
import math
import os
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncloader import system
from asyncloader.errors import TransportError
from asyncloader.transport import codec
from asyncloader.transport.arena import Arena, ArenaView
from asyncloader.transport.code import dumps_code, loads_code, unsendable_in
from asyncloader.transport.codec import Decoder, Encoder
from asyncloader.transport.pickling import Pickled, Pickler, Source
from asyncloader.transport.raw_arrays import RAW

MIB = 1 << 20
BIG = 100_000


class Wire:
    """An encoder and a decoder, with payloads and releases carried by hand."""

    def __init__(self, budget=64 * MIB, copy_beyond=sys.maxsize, **options):
        self.arena = Arena(budget)
        self.view = ArenaView(copy_beyond=copy_beyond)
        self.encoder = Encoder(self.arena, **options)
        self.decoder = Decoder(self.view)

    def payload(self, items):
        encoded = self.encoder.encode(items)
        return b"".join(encoded.parts), encoded.fds

    def carry(self, items):
        received = self.decoder.decode(*self.payload(items))
        self.settle()
        return received

    def settle(self):
        self.arena.release(self.view.take_released())

    def close(self):
        self.arena.close()
        self.view.close()


@pytest.fixture
def wire(leaves_nothing):
    wire = Wire()
    yield wire
    wire.close()


def dtypes():
    return sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)


def random_tensor(dtype, count):
    raw = torch.frombuffer(bytearray(os.urandom(16 * count)), dtype=torch.uint8)
    return (raw & 1).view(dtype) if dtype is torch.bool else raw.view(dtype)


def raw_bytes(tensor):
    return tensor.detach().flatten().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes() if not str(d).startswith("torch.q")], ids=str
)
@pytest.mark.parametrize("count", [1, 2000])
def test_tensors_of_every_dtype_come_back_as_they_were(wire, dtype, count):
    try:
        tensor = random_tensor(dtype, count)
    except (TypeError, RuntimeError, ValueError) as reason:
        pytest.skip(str(reason))
    (got,) = wire.carry([tensor])
    assert (got.dtype, got.shape) == (dtype, tensor.shape)
    assert raw_bytes(got) == raw_bytes(tensor)


LAYOUTS = {
    "0-dim": torch.tensor(3.5),
    "empty": torch.empty(3, 0, 2, dtype=torch.int32),
    "small": torch.arange(5),
    "large": torch.arange(BIG),
    "transposed": torch.arange(BIG).view(100, -1).T,
    "strided": torch.arange(BIG)[::3],
    "expanded": torch.arange(100).view(1, 100).expand(100, 100),
    "channels last": torch.randn(2, 3, 64, 64).to(memory_format=torch.channels_last),
    "part of a larger one": torch.arange(BIG)[10:5000],
    "conjugate": torch.randn(BIG, dtype=torch.complex64).conj(),
    "negative": torch.randn(BIG, dtype=torch.complex64).conj().imag,
    "requires grad": torch.randn(BIG, requires_grad=True),
    "with history": torch.randn(BIG, requires_grad=True) * 2,
    "sparse": torch.eye(4).to_sparse(),
    "parameter": torch.nn.Parameter(torch.randn(BIG)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_of_every_layout_come_back_as_they_were(wire, name):
    tensor = LAYOUTS[name]
    (got,) = wire.carry([tensor])
    assert type(got) is type(tensor)
    assert got.requires_grad == tensor.requires_grad
    assert got.layout == tensor.layout
    assert got.shape == tensor.shape
    assert torch.equal(got.to_dense(), tensor.to_dense())


def carried_plainly(tensor):
    (got,) = Decoder().decode(b"".join(Encoder(Arena(0)).encode([tensor]).parts))
    return got


@st.composite
def dense_tensors(draw):
    """Tensors that fill their memory, with their dimensions in any order there."""
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 13]), max_size=5))
    dtype = draw(st.sampled_from([torch.uint8, torch.bool, torch.float32, torch.complex64]))
    order = draw(st.permutations(range(len(shape))))
    tensor = random_tensor(dtype, 1 + math.prod(shape))[: math.prod(shape)].view(shape)
    grad = draw(st.booleans()) and (dtype.is_floating_point or dtype.is_complex)
    return tensor.permute(order).requires_grad_(grad)


@settings(deadline=None)
@given(dense_tensors())
def test_the_order_of_dimensions_in_memory_is_kept(tensor):
    got = carried_plainly(tensor)
    assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
    assert (got.requires_grad, got.is_leaf) == (tensor.requires_grad, True)
    assert raw_bytes(got) == raw_bytes(tensor)
    if tensor.numel():
        # Where a dimension of one element lies in memory has no meaning.
        assert wide_strides(got) == wide_strides(tensor)


def wide_strides(tensor):
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]


FORMATS = [
    (torch.channels_last, (2, 3, 4, 4)),
    (torch.channels_last, (2, 3, 64, 64)),
    (torch.channels_last_3d, (2, 3, 2, 4, 4)),
    (torch.channels_last_3d, (2, 3, 8, 16, 16)),
]


@pytest.mark.parametrize(("memory_format", "shape"), FORMATS)
def test_memory_formats_are_kept(wire, memory_format, shape):
    (got,) = wire.carry([torch.randn(shape).to(memory_format=memory_format)])
    assert got.is_contiguous(memory_format=memory_format)
    assert not got.is_contiguous()


@pytest.mark.parametrize("count", [100, BIG])
def test_tensors_that_leave_gaps_or_overlap_become_contiguous(wire, count):
    row = torch.arange(count)
    gaps, overlapping = row.view(10, -1)[:, ::2].T, row.expand(3, count).T
    got = wire.carry([gaps, overlapping])
    assert all(each.is_contiguous() for each in got)
    assert torch.equal(got[0], gaps)
    assert torch.equal(got[1], overlapping)


def test_a_permuted_tensor_made_in_a_slot_is_sent_without_a_copy(wire):
    made = torch.frombuffer(wire.arena.allocate(BIG * 8), dtype=torch.int64).view(100, -1).T
    (got,) = wire.carry([made])
    made[0, 1] = -7
    assert got[0, 1] == -7


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantized_tensors_come_back_as_they_were(wire):
    tensor = torch.quantize_per_tensor(torch.randn(BIG), 0.1, 3, torch.qint8)
    (got,) = wire.carry([tensor])
    assert got.is_quantized
    assert torch.equal(got.int_repr(), tensor.int_repr())


def test_a_tensors_own_attributes_are_kept(wire):
    tensor = torch.arange(BIG)
    tensor.label = "cat"
    (got,) = wire.carry([tensor])
    assert got.label == "cat"


def pickled(item):
    return Pickler(lambda dump: None).dump(item)


@pytest.mark.parametrize("of", [torch.from_numpy, lambda array: array], ids=["tensor", "array"])
def test_of_a_bare_item_only_its_form_and_its_memory_are_sent(wire, of):
    arrays = [np.random.default_rng(seed).random((3, BIG)) for seed in range(2)]
    first, second = (pickled(of(array)) for array in arrays)
    assert first.data == second.data
    assert first.data.startswith(RAW)
    assert [each.address for each in first.sources] == [arrays[0].ctypes.data]
    assert pickled(of(arrays[0].reshape(BIG, 3))).data != first.data
    assert pickled(of(arrays[0].astype("float32"))).data != first.data
    (got,) = wire.carry([of(arrays[0])])
    assert type(got) is type(of(arrays[0]))
    np.testing.assert_array_equal(np.asarray(got), arrays[0])
    got[0, 0] = 99
    assert arrays[0][0, 0] != 99


class Labelled(torch.Tensor):
    pass


class Named(np.ndarray):
    pass


def with_label(tensor):
    tensor.label = "cat"
    return tensor


def read_only(array):
    array.flags.writeable = False
    return array


MORE = {
    "small": torch.ones(10),
    "strided": torch.ones(BIG, 2).T,
    "grad": torch.ones(BIG, requires_grad=True),
    "conj": torch.ones(BIG, dtype=torch.complex64).conj(),
    "neg": torch.ones(BIG, dtype=torch.complex64).conj().imag,
    "label": with_label(torch.ones(BIG)),
    "subclass": torch.ones(BIG).as_subclass(Labelled),
    "sparse": torch.ones(BIG).to_sparse(),
    "small array": np.ones(10),
    "strided array": np.ones((BIG, 2))[:, 0],
    "Fortran's order": np.ones((BIG, 2), order="F"),
    "array of a subclass": np.ones(BIG).view(Named),
    "read-only array": read_only(np.ones(BIG)),
    "swapped array": np.ones(BIG, ">f8"),
    "array with metadata": np.ones(BIG, np.dtype("f8", metadata={"unit": "m"})),
    "array of fields": np.ones(BIG, [("x", "f8"), ("y", "f4")]),
    "array of dates": np.zeros(BIG, "M8[s]"),
    "array of texts": np.zeros(BIG, "U3"),
}


@pytest.mark.parametrize("name", MORE)
def test_what_is_more_than_its_memory_is_pickled(name):
    assert pickled(MORE[name]).data.startswith(pickle.PROTO)


def carried_form(form, memories):
    """Return what arrives of an item of this form over these memories."""
    encoder = Encoder(Arena(0))
    placement = encoder.placement()
    sources = [Source(len(memory), 0, memoryview(memory)) for memory in memories]
    placed = placement.add(Pickled(form, sources))
    payload = encoder.payload(placement, [placed], 1)
    return Decoder().decode(b"".join(payload.parts))[0]


@pytest.mark.parametrize(
    ("form", "memory"),
    [
        (b"", [bytearray(8)]),
        (b"nonsense", [bytearray(8)]),
        (pickle.dumps(("tensor", "float32", (2,))), []),
        (pickle.dumps(("tensor", "float32", (3,))), [bytearray(8)]),
        (pickle.dumps(("array", "<f4", (3, 1))), [bytearray(8)]),
        (pickle.dumps(("tensor", "float33", (2,))), [bytearray(8)]),
        (pickle.dumps(("picture", "float32", (2,))), [bytearray(8)]),
        (pickle.dumps(2), [bytearray(8)]),
    ],
)
def test_a_form_that_does_not_fit_its_memory_is_an_error_in_its_place(form, memory):
    found = carried_form(RAW + form, memory)
    assert isinstance(found, TransportError)
    assert "could not be unpickled" in str(found)


def test_arrays_of_numbers_are_pickled_beside_other_things_without_numpys_own_way(wire):
    array, dates = np.arange(BIG), np.arange(BIG).astype("M8[s]")
    assert b"numpy" not in pickled((array, 5)).data
    got, label, moments = wire.carry([(array, 5, dates)])[0]
    np.testing.assert_array_equal(got, array)
    np.testing.assert_array_equal(moments, dates)
    assert (label, got.dtype, got.flags.writeable) == (5, array.dtype, True)


ARRAYS = {
    "C": np.arange(BIG).reshape(10, -1),
    "F": np.asfortranarray(np.arange(BIG).reshape(10, -1)),
    "strided": np.arange(BIG)[::3],
    "0-dim": np.array(3.5),
    "empty": np.empty((0, 3)),
    "small": np.arange(4, dtype=np.uint8),
    "structured": np.zeros(BIG, dtype=[("a", "i4"), ("b", "f8")]),
    "dates": np.arange(BIG).astype("datetime64[s]"),
    "strings": np.array(["a", "bcd"] * BIG),
    "half": np.ones(BIG, dtype=np.float16),
    "complex": np.ones(BIG, dtype=np.complex128),
    "bool": np.ones(BIG, dtype=bool),
    "big endian": np.arange(BIG, dtype=">i4"),
    "objects": np.array([{}, None, "x"], dtype=object),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_as_they_were(wire, name):
    array = ARRAYS[name]
    (got,) = wire.carry([array])
    assert got.dtype == array.dtype
    assert got.flags.f_contiguous == array.flags.f_contiguous or not array.flags.contiguous
    assert got.flags.writeable
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("size", [0, 10, BIG])
@pytest.mark.parametrize("wrap", [lambda b: b, lambda b: (b, 1), lambda b: [b], lambda b: {"k": b}])
def test_bytes_come_back_as_bytes(wire, size, wrap):
    for data in (os.urandom(size), bytearray(os.urandom(size))):
        (got,) = wire.carry([wrap(data)])
        assert got == wrap(data)
        flat = (
            got
            if isinstance(got, (bytes, bytearray))
            else next(iter(getattr(got, "values", got.__iter__)()))
        )
        assert type(flat) is type(data)
    assert wire.arena.lent_bytes == 0


def test_large_bytes_do_not_pass_through_the_socket(wire):
    for item in (bytes(BIG), {"a": bytes(BIG)}, (bytearray(BIG), 3), memoryview(bytes(BIG))):
        payload, fds = wire.payload([item])
        assert len(payload) < 1000
        wire.decoder.give_back(wire.decoder.admit(payload, fds))
    wire.settle()
    assert wire.arena.lent_bytes == 0


MUCH = 5 << 20


@pytest.mark.parametrize(
    "make",
    [bytes, bytearray, lambda data: {"a": bytes(data)}, lambda data: memoryview(bytes(data))],
    ids=["bytes", "bytearray", "in a dict", "memoryview"],
)
def test_many_bytes_are_copied_in_a_thread_and_come_back_as_they_were(wire, make):
    item = make(os.urandom(MUCH // 16) * 16 + b"end")
    payload = wire.decoder.admit(*wire.payload([item]))
    assert payload.is_slow
    (got,) = wire.decoder.items(payload)
    assert got == item
    assert type(got) is type(item)
    small = wire.decoder.admit(*wire.payload([make(bytes(BIG))]))
    assert not small.is_slow
    wire.decoder.give_back(small)


def test_an_array_beside_a_few_bytes_is_not_copied_in_a_thread(wire):
    for item in (np.zeros(MUCH, np.uint8), ("copied", np.zeros(MUCH, np.uint8))):
        payload = wire.decoder.admit(*wire.payload([item]))
        assert not payload.is_slow
        wire.decoder.give_back(payload)


def test_memoryviews_come_back_with_their_shape(wire):
    view = memoryview(bytearray(range(24))).cast("i", (2, 3))
    small, large = wire.carry([view, memoryview(bytes(BIG))])
    assert small.tolist() == view.tolist()
    assert not small.readonly
    assert large == bytes(BIG)
    assert large.readonly


@pytest.mark.parametrize("dtype", ["e", "F", ">i4", "S3", "U2", "i4,f8"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (0,), (2, 0)])
def test_memoryviews_of_any_format_come_back(wire, dtype, shape):
    array = np.zeros(shape, dtype)
    array.flags.writeable = shape != (3,)
    (got,) = wire.carry([memoryview(array)])
    sent = memoryview(array)
    assert (got.shape, got.readonly) == (sent.shape, sent.readonly)
    # Several texts stand for one format of records.
    assert np.asarray(got).dtype == np.asarray(sent).dtype
    assert bytes(got) == bytes(sent)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@pytest.mark.soak
@settings(deadline=None)
@given(st.lists(values, max_size=8))
def test_plain_items_come_back_as_they_were(items):
    encoded = Encoder(Arena(0)).encode(items)
    assert Decoder().decode(b"".join(encoded.parts)) == items


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_payloads_are_errors_and_never_worse(data):
    wire = Wire()
    payload, fds = wire.payload([1, torch.arange(BIG), "three", os.urandom(5000)])
    # The pickle itself is trusted; the tables in front of it are not.
    damaged = bytearray(payload)
    where = data.draw(st.integers(0, min(len(payload), 24 + 8 * 17) - 1))
    damaged[where] ^= data.draw(st.integers(1, 255))
    try:
        items = wire.decoder.decode(bytes(damaged), fds)
    except TransportError:
        pass
    else:
        assert isinstance(items, list)
    wire.close()


@given(st.binary(max_size=200))
def test_garbage_payloads_are_transport_errors(garbage):
    for read in (Decoder().decode, Decoder().admit):
        try:
            read(garbage)
        except TransportError:
            continue


def test_the_tensor_is_the_slot_and_the_slot_returns_with_its_last_view(wire):
    (got,) = wire.carry([torch.arange(BIG)])
    part = got[10:20]
    part += 1
    assert got[10] == 11
    del got
    wire.settle()
    assert wire.arena.lent_bytes > 0
    del part
    wire.settle()
    assert wire.arena.lent_bytes == 0


def test_large_items_return_one_by_one(wire):
    got = wire.carry([torch.arange(BIG) for _ in range(3)])
    whole = wire.arena.lent_bytes
    got.pop()
    wire.settle()
    assert wire.arena.lent_bytes == whole * 2 // 3


def test_small_buffers_share_a_slot(wire):
    got = wire.carry([torch.full((2000,), float(n)) for n in range(16)])
    assert [t[0].item() for t in got] == list(range(16))
    assert wire.arena.lent_bytes <= 3 * 80 * 1024


def test_a_tensor_made_in_a_slot_is_sent_without_a_copy(wire):
    made = torch.frombuffer(wire.arena.allocate(BIG * 8), dtype=torch.int64)
    torch.arange(BIG, out=made)
    (got,) = wire.carry([{"x": made, "tail": made[-10_000:]}])
    assert torch.equal(got["x"], torch.arange(BIG))
    made[-1] = -7
    assert got["tail"][-1] == -7
    lent = wire.arena.lent_bytes
    again = wire.carry([made])
    assert wire.arena.lent_bytes == 2 * lent
    made[0] = 99
    assert again[0][0] == 0
    del got, again
    wire.settle()
    other = torch.frombuffer(wire.arena.allocate(BIG * 8), dtype=torch.int64)
    assert other.data_ptr() != made.data_ptr()


def test_nothing_of_an_item_is_kept_after_it_was_encoded(wire):
    class Item:
        pass

    item = Item()
    gone = weakref.ref(item)
    wire.decoder.give_back(wire.decoder.admit(*wire.payload([(torch.ones(BIG), len)])))
    with pytest.raises(TypeError):
        wire.payload([(item, threading.Lock())])
    del item
    assert gone() is None


class Refuses:
    def __reduce__(self):
        raise RuntimeError("not me")


class Explodes:
    def __reduce__(self):
        return explode, ("boom",)


def explode(message):
    raise KeyError(message)


def test_an_item_that_does_not_pickle_raises_its_own_error(wire):
    with pytest.raises(RuntimeError, match="not me"):
        wire.payload([1, torch.ones(BIG), Refuses()])
    assert wire.arena.lent_bytes == 0
    assert wire.carry([1, 2]) == [1, 2]


def test_an_item_that_does_not_unpickle_leaves_its_neighbours_alone(wire):
    first, bad, last = wire.carry([torch.ones(BIG), Explodes(), np.ones(BIG)])
    assert torch.equal(first, torch.ones(BIG))
    assert isinstance(bad, TransportError)
    assert "KeyError: 'boom'" in str(bad)
    assert isinstance(bad.__cause__, KeyError)
    assert "raise KeyError(message)" in bad.__notes__[0]
    np.testing.assert_array_equal(last, np.ones(BIG))
    assert wire.carry([1, Explodes()])[0] == 1
    del first, last
    wire.settle()
    assert wire.arena.lent_bytes == 0


class Raises:
    """Unpickling it raises an error of any kind."""

    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        return _raise, (self.kind,)


def _raise(kind):
    raise kind


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_ends_something_else_is_no_end_where_an_item_is_unpickled(wire, kind):
    one, bad, three = wire.carry([1, Raises(kind), 3])
    assert (one, three) == (1, 3)
    assert type(bad) is TransportError
    assert kind.__name__ in str(bad)
    with pytest.raises(KeyboardInterrupt):
        wire.carry([1, Raises(KeyboardInterrupt), 3])


Point = collections.namedtuple("Point", "x y")


def test_lambdas_and_local_classes_travel_by_value(wire):
    class Local:
        value = 3

    function, local, point = wire.carry([lambda x: x + 1, Local(), Point(bytes(BIG), 2)])
    assert function(1) == 2
    assert local.value == 3
    assert type(local) is Local
    assert point == Point(bytes(BIG), 2)


MAIN = """
import subprocess, sys
from asyncloader.transport.arena import Arena
from asyncloader.transport.codec import Encoder
class Sample:
    def __init__(self, n): self.n = n
encoded = Encoder(Arena(0), main_by_value=True).encode([Sample(1), Sample(2)])
sys.stdout.buffer.write(b"".join(encoded.parts))
"""


def test_classes_of_main_reach_a_process_with_another_main():
    payload = subprocess.run(
        [sys.executable, "-c", MAIN], stdout=subprocess.PIPE, check=True
    ).stdout
    assert [sample.n for sample in Decoder().decode(payload)] == [1, 2]


def test_plain_items_import_neither_torch_nor_numpy():
    script = (
        "import sys\n"
        "from asyncloader.transport.arena import Arena\n"
        "from asyncloader.transport.codec import Decoder\n"
        "from asyncloader.transport.codec import Encoder\n"
        "e = Encoder(Arena(0)).encode([1, 'a', {'b': (bytes(9999), len)}])\n"
        "assert Decoder().decode(b''.join(e.parts))[2]['b'][1] is len\n"
        "assert not {'torch', 'numpy', 'cloudpickle'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_frame_announces_a_few_segments_at_most(wire):
    tensors = [torch.full((BIG + n * 20_000,), n, dtype=torch.int32) for n in range(40)]
    payload, fds = wire.payload([tensors])
    assert 0 < len(fds) <= 16
    (got,) = wire.decoder.decode(payload, fds)
    assert all(torch.equal(a, b) for a, b in zip(got, tensors, strict=True))
    del got
    wire.settle()


def test_a_full_arena_sends_in_band(leaves_nothing):
    wire = Wire(budget=MIB)
    kept = [wire.carry([torch.full((BIG,), n)])[0] for n in range(5)]
    assert all((t == n).all() for n, t in enumerate(kept))
    assert wire.arena.mapped_bytes <= MIB
    kept[-1][0] = 7
    del kept
    wire.settle()
    wire.close()


def test_without_a_descriptor_for_more_memory_items_go_in_band(leaves_nothing, monkeypatch):
    def refuse(label: str = "") -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    wire = Wire()
    small, large = torch.ones(BIG), torch.ones(4 * BIG)
    kept = wire.carry([small])
    monkeypatch.setattr(system, "unnamed_memory", refuse)
    assert torch.equal(wire.carry([large])[0], large)
    monkeypatch.undo()
    assert torch.equal(wire.carry([large])[0], large)
    assert torch.equal(kept[0], small)
    del kept
    wire.settle()
    wire.close()


def test_a_full_arena_may_be_waited_for(leaves_nothing):
    asked = []

    def wait(nbytes):
        asked.append(nbytes)
        kept.clear()
        wire.settle()
        return True

    wire = Wire(budget=MIB, on_full=wait)
    kept = [wire.carry([torch.ones(BIG)])[0]]
    kept += [wire.carry([torch.ones(BIG)])[0], wire.carry([torch.ones(BIG)])[0]]
    assert asked == [BIG * 4]
    # A list larger than the budget does not wait for itself.
    kept.clear()
    wire.settle()
    assert len(wire.carry([torch.ones(BIG) for _ in range(5)])) == 5
    wire.settle()
    wire.close()


def test_an_error_while_waiting_returns_the_slots_of_the_payload(leaves_nothing):
    def fail(nbytes):
        raise EOFError

    wire = Wire(budget=MIB, on_full=fail)
    kept = wire.carry([torch.ones(BIG)])
    lent = wire.arena.lent_bytes
    with pytest.raises(EOFError):
        wire.payload([torch.ones(BIG), torch.ones(BIG)])
    assert wire.arena.lent_bytes == lent
    del kept
    wire.settle()
    wire.close()


def test_a_consumer_that_keeps_everything_gets_copies(leaves_nothing):
    wire = Wire(budget=4 * MIB, copy_beyond=2 * MIB)
    kept = [wire.carry([torch.full((BIG,), n)])[0] for n in range(50)]
    assert all((t == n).all() for n, t in enumerate(kept))
    assert wire.arena.lent_bytes <= 2 * MIB
    del kept
    wire.settle()
    wire.close()


def test_thousands_of_frames_leave_nothing_behind(wire):
    for number in range(3000):
        items = wire.carry([torch.full((2000 + number,), 1), bytes(5000), number])
        del items
        wire.settle()
    assert wire.arena.lent_bytes == 0
    assert wire.arena.mapped_bytes < 8 * MIB


def test_large_pickles_let_other_threads_run():
    rows = [{"path": f"img/{n}", "label": n} for n in range(200_000)]
    ticks = count_while(lambda: payloads.append(Encoder(Arena(0)).encode([rows]).parts))
    payload = b"".join(payloads[0])
    assert ticks > 3
    assert Decoder().admit(payload).is_slow
    assert count_while(lambda: Decoder().decode(payload)) > 3
    assert not Decoder().admit(b"".join(Encoder(Arena(0)).encode([1]).parts)).is_slow


def test_plain_items_that_speak_of_torch_need_none(monkeypatch):
    monkeypatch.setattr(codec, "has_torch", lambda: False)
    texts = [f"torch, page {number}" for number in range(50)]
    shared = Decoder().admit(b"".join(Encoder(Arena(0)).encode(texts).parts))
    assert (shared.items, len(shared.pickles)) == (50, 1)
    assert not shared.needs_torch
    assert not shared.is_slow


@pytest.mark.parametrize("size", [3, 5000])
def test_a_payload_says_that_it_needs_torch(monkeypatch, size):
    payload = b"".join(Encoder(Arena(0)).encode([torch.ones(size), 7]).parts)
    assert not Decoder().admit(payload).is_slow
    monkeypatch.setattr(codec, "has_torch", lambda: False)
    assert Decoder().admit(payload).is_slow
    assert not Decoder().admit(b"".join(Encoder(Arena(0)).encode([{7: None}]).parts)).is_slow


payloads: list = []


def count_while(work):
    """How often this thread got to run while another one worked."""
    thread, ticks = threading.Thread(target=work), 0
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread.start()
    while thread.is_alive():
        thread.join(0.0002)
        ticks += 1
    sys.setswitchinterval(interval)
    return ticks


def test_code_travels_with_what_it_closes_over():
    offset = 40
    assert loads_code(dumps_code(lambda x: x + offset))(2) == 42
    large = list(range(300_000))
    assert loads_code(memoryview(dumps_code(lambda: large)))() == large


@functools.lru_cache
def a_cached_function(number):
    return number


def test_cached_functions_travel_with_their_code_where_nobody_can_import_them():
    @functools.lru_cache(maxsize=7, typed=True)
    def fibonacci(number):
        return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)

    assert fibonacci(10) == 55
    arrived = loads_code(dumps_code(fibonacci))
    assert arrived.cache_parameters() == {"maxsize": 7, "typed": True}
    assert arrived.cache_info().currsize == 0, "the cache is each process's own"
    assert arrived(20) == 6765
    assert loads_code(dumps_code(functools.cache(str)))(3) == "3"
    assert loads_code(dumps_code(a_cached_function)) is a_cached_function


def test_generic_functions_travel_with_all_their_cases():
    @functools.singledispatch
    def shown(item):
        return "something"

    @shown.register
    def _(item: list):
        return [shown(each) for each in item]

    class Named:
        def __init__(self, name):
            self.name = name

        @functools.cached_property
        def length(self):
            return len(self.name)

        @functools.singledispatchmethod
        def told(self, item):
            return self.name

        @told.register
        def _(self, item: int):
            return item * self.length

    arrived = loads_code(dumps_code(shown))
    assert arrived([1, [2]]) == ["something", ["something"]]
    named = loads_code(dumps_code(Named("four")))
    assert (named.length, named.told(2), named.told("")) == (4, 8, "four")


def of_the_script(source):
    """Return the function in a source as one that only the script has."""
    names = {"__name__": "__main__"}
    exec(source, names)
    return names["function"]


LOCK = threading.Lock()


class Holder:
    def __init__(self, held):
        self.held = held

    def method(self, item):
        return item


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (of_the_script("import threading\nlock = threading.Lock()\ndef function(): lock"),
         "the global variable 'lock' of function"),
        (of_the_script("import threading\nlock = threading.Lock()\ndef inner(): lock\n"
                       "def function(): return [inner() for _ in ()]"),
         "the global variable 'lock' of inner"),
        (lambda held=LOCK: held, "a default of <lambda>"),
        (Holder(LOCK).method, "the attribute 'held' of Holder"),
        (functools.partial(max, LOCK), "an argument of max"),
        ({"all": [1, LOCK]}, "an element of type lock"),
        (LOCK, "its name"),
        (len, ""),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_found(value, words):
    assert unsendable_in(value, "its name") == words


def test_a_variable_that_cannot_be_sent_is_found():
    lock = threading.Lock()
    found = unsendable_in(lambda: (lock, not_yet), "its name")
    assert found.startswith("the variable 'lock' of test_a_variable")
    not_yet = None
