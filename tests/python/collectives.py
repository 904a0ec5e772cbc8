"""The collectives of the backend tutti, compared with those of Gloo on the same numbers."""

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import torch_tutti
from support import case, expect, rank, run, same_bits, size

floats = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
integers = [torch.uint8, torch.int8, torch.int32, torch.int64]
arithmetic = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
bitwise = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
_gloo = []


def gloo():
    """A group over Gloo, created once."""
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return _gloo[0]


def numbers(dtype, count=12, of=None):
    """Small whole numbers: their sums and products are exact in every type."""
    of = rank() if of is None else of
    return (torch.arange(count) % 3 + of % 2 + 1).to(dtype)


def both(function):
    """The results of `function(group)`, over tutti and over Gloo."""
    return function(None), function(gloo())


def expect_reduced(cases):
    for dtype, op in cases:

        def reduced(group, dtype=dtype, op=op):
            tensor = numbers(dtype)
            dist.all_reduce(tensor, op, group=group)
            return tensor

        same_bits(*both(reduced), f"{dtype} {op}")


@case
def all_reduce_has_all_dtypes_and_ops():
    expect_reduced((dtype, op) for dtype in floats + integers for op in arithmetic)


@case
def all_reduce_has_bitwise_ops():
    expect_reduced((dtype, op) for dtype in integers for op in bitwise)


@case
def averages_of_floats():
    for dtype in (torch.float32, torch.float64):
        tensor = numbers(dtype)
        dist.all_reduce(tensor, ReduceOp.AVG)
        expected = sum(numbers(dtype, of=of) for of in range(size())) / size()
        assert torch.allclose(tensor, expected)


@case
def strided_empty_and_scalar_tensors():
    matrix = torch.arange(12.0).view(3, 4) + rank()
    expected = sum(torch.arange(12.0).view(3, 4) + of for of in range(size()))
    turned = matrix.t()
    dist.all_reduce(turned)
    same_bits(turned, expected.t())
    empty = torch.empty(0)
    dist.all_reduce(empty)
    scalar = torch.tensor(float(rank()))
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(size()))


@case
def broadcast_reduce_gather_scatter():
    for root in range(size()):

        def broadcast(group):
            tensor = numbers(torch.float32)
            dist.broadcast(tensor, root, group=group)
            return tensor

        def reduce(group):
            tensor = numbers(torch.float64)
            dist.reduce(tensor, root, group=group)
            return tensor if rank() == root else torch.zeros(0)

        def gather(group):
            outputs = [torch.zeros(5) for _ in range(size())] if rank() == root else None
            dist.gather(torch.full((5,), float(rank())), outputs, root, group=group)
            return torch.stack(outputs) if outputs else torch.zeros(0)

        def scatter(group):
            inputs = [torch.full((4,), float(of + root)) for of in range(size())] if rank() == root else None
            output = torch.zeros(4)
            dist.scatter(output, inputs, root, group=group)
            return output

        for function in (broadcast, reduce, gather, scatter):
            same_bits(*both(function), function.__name__)


@case
def all_gather_and_reduce_scatter():
    def gathered(group):
        outputs = [torch.zeros(2, 3) for _ in range(size())]
        dist.all_gather(outputs, torch.full((2, 3), float(rank())), group=group)
        return torch.stack(outputs)

    def gathered_flat(group):
        output = torch.zeros(size() * 3, dtype=torch.int64)
        dist.all_gather_into_tensor(output, torch.arange(3) + 10 * rank(), group=group)
        return output

    def scattered(group):
        output = torch.zeros(4)
        dist.reduce_scatter(output, [numbers(torch.float32, 4, rank() + part) for part in range(size())], group=group)
        return output

    for function in (gathered, gathered_flat, scattered):
        same_bits(*both(function), function.__name__)
    output = torch.zeros(4)
    dist.reduce_scatter_tensor(output, torch.arange(4.0 * size()) + rank())
    expected = size() * torch.arange(4.0 * size()) + sum(range(size()))
    same_bits(output, expected[4 * rank() : 4 * rank() + 4])


@case
def all_to_all_even_uneven_and_as_lists():
    def even(group):
        output = torch.zeros(2 * size())
        dist.all_to_all_single(output, torch.arange(2.0 * size()) + 100 * rank(), group=group)
        return output

    def uneven(group):
        # Rank r sends i + r rows to rank i.
        sent = [of + rank() for of in range(size())]
        received = [rank() + of for of in range(size())]
        output = torch.zeros(sum(received), 2)
        dist.all_to_all_single(output, torch.arange(2.0 * sum(sent)).view(-1, 2) + 100 * rank(), received, sent, group=group)
        return output

    same_bits(*both(even), "even")
    same_bits(*both(uneven), "uneven")
    inputs = [torch.full((3,), float(10 * rank() + of)) for of in range(size())]
    outputs = [torch.zeros(3) for _ in range(size())]
    dist.all_to_all(outputs, inputs)
    for of in range(size()):
        assert outputs[of].tolist() == [10 * of + rank()] * 3


@case
def point_to_point():
    to, source = (rank() + 1) % size(), (rank() - 1) % size()
    received = torch.zeros(7)
    sending = dist.isend(torch.full((7,), float(rank())), to)
    dist.recv(received, source)
    sending.wait()
    assert received.tolist() == [source] * 7
    operations = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank())), to),
        dist.P2POp(dist.irecv, received[:3], source),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    if rank() == 0:
        seen = set()
        for _ in range(size() - 1):
            anyone = torch.zeros(1)
            seen.add(dist.recv(anyone))
        assert seen == set(range(1, size())), seen
    else:
        dist.send(torch.zeros(1), 0)


@case
def works_and_futures():
    tensor = torch.full((1 << 16,), float(rank()))
    work = dist.all_reduce(tensor, async_op=True)
    called = []
    doubled = work.get_future().then(lambda future: called.append(1) or future.value()[0] * 2)
    assert doubled.wait()[0].item() == 2 * sum(range(size()))
    assert called == [1]
    work.wait()  # the work completes after its future
    assert work.is_completed()
    # Callbacks run on threads of the backend while this thread is in other operations.
    futures = []
    for _ in range(50):
        one = torch.ones(8)
        futures.append(dist.all_reduce(one, async_op=True).get_future().then(lambda done: done.value()[0].sum().item()))
        dist.barrier()
    assert [future.wait() for future in futures] == [8.0 * size()] * 50


@case
def objects():
    outputs = [None] * size()
    dist.all_gather_object(outputs, {"rank": rank(), "text": "x" * rank()})
    assert outputs == [{"rank": of, "text": "x" * of} for of in range(size())]
    word = [f"from {rank()}"]
    dist.broadcast_object_list(word, src=size() - 1)
    assert word == [f"from {size() - 1}"]
    received = [None]
    dist.scatter_object_list(received, [f"to {of}" for of in range(size())] if rank() == 0 else None, src=0)
    assert received == [f"to {rank()}"]
    gathered = [None] * size() if rank() == 0 else None
    dist.gather_object(rank() ** 2, gathered)
    assert rank() != 0 or gathered == [of**2 for of in range(size())]


@case
def subgroups():
    everyone = dist.new_group()
    ends = dist.new_group([0, size() - 1])
    alone = [dist.new_group([of]) for of in range(size())][rank()]
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=everyone)
    dist.all_reduce(tensor, group=alone)
    assert tensor.tolist() == [size()] * 3
    if rank() in (0, size() - 1):
        tensor = torch.full((2,), float(rank()))
        dist.all_reduce(tensor, group=ends)
        assert tensor.tolist() == [size() - 1] * 2
        assert dist.get_rank(ends) == (0 if rank() == 0 else 1)
    for group in (everyone, alone):
        dist.destroy_process_group(group)


@case
def coalesced():
    tensors = [torch.full((count,), float(rank() + count)) for count in (1, 5, 9)]
    expected = [torch.full_like(tensor, sum(of + len(tensor) for of in range(size()))) for tensor in tensors]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, should_be in zip(tensors, expected):
        same_bits(tensor, should_be)
    outputs = [torch.zeros(size() * 2), torch.zeros(size() * 3)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((len(output) // size(),), float(rank())))
    for output in outputs:
        same_bits(output, torch.arange(float(size())).repeat_interleave(len(output) // size()))


@case
def functional_collectives():
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    summed = functional.all_reduce(torch.ones(4) * rank(), "sum", group)
    assert summed.tolist() == [sum(range(size()))] * 4
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank())), 0, group)
    assert gathered.tolist() == [float(of) for of in range(size()) for _ in range(2)]
    part = functional.reduce_scatter_tensor(torch.ones(size() * 2), "sum", 0, group)
    assert part.tolist() == [size()] * 2


@case
def barriers():
    dist.barrier()
    dist.monitored_barrier()


@case
def sparse_tensors():
    dense = torch.zeros(8, 3)
    dense[: rank()] = 1 + rank()
    sparse = dense.to_sparse(1)
    dist.all_reduce(sparse)
    same = torch.zeros(8, 3)
    for of in range(size()):
        same[:of] += 1 + of
    same_bits(sparse.to_dense(), same)


@case
def what_cannot_be_done_is_refused():
    sparse = torch.ones(2).to_sparse()
    expect(torch_tutti.UsageError, "the only supported ReduceOp is SUM", dist.all_reduce, sparse, ReduceOp.MAX)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)  # the group still works
    assert tensor.tolist() == [size()] * 2


@case
def ranks_that_contradict_raise():
    if size() == 1:
        return
    error = expect(torch_tutti.MismatchError, "rank", dist.all_reduce, torch.ones(2 + rank() % 2))
    assert isinstance(error, dist.DistBackendError) and isinstance(error, torch_tutti.Error)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)  # the group stays usable
    assert tensor.tolist() == [size()] * 2


@case
def groups_have_names_and_backends():
    assert dist.get_backend() == "tutti"
    assert torch_tutti.backend_name()
    expect(torch_tutti.UsageError, "not over tutti", torch_tutti.backend_name, gloo())
    first = dist.new_group([0])  # GroupMember.NON_GROUP_MEMBER on the other ranks
    if rank() > 0:
        expect(torch_tutti.UsageError, "not in the process group", torch_tutti.backend_name, first)


if __name__ == "__main__":
    run()
