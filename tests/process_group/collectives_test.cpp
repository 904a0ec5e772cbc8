// Ranks: 1, 2 and 3 as threads, through shared memory and over TCP.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>

#include "process_group/groups.h"
#include "tutti/comm/thread_ranks.h"
#include "tutti/core/error.h"

namespace tutti::test::collectives_test {
namespace {

constexpr std::int64_t small = 5;
constexpr std::int64_t large = 300'001;  // several chunks in every algorithm

at::Tensor mine(int rank, std::int64_t elements = small) {
  return at::arange(elements, at::kFloat).remainder(100) + rank;
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(found, expected)) << found.flatten().slice(0, 0, 8) << "expected\n"
                                          << expected.flatten().slice(0, 0, 8);
}

at::Tensor total(int size, std::int64_t elements) {
  auto sum = at::zeros({elements});
  for (int rank = 0; rank < size; ++rank) sum += mine(rank, elements);
  return sum;
}

TEST(GroupCollectives, AllReduce) {
  run_everywhere([](ProcessGroupTutti& group) {
    for (const auto elements : {std::int64_t{0}, small, large}) {
      Tensors tensors{mine(group.getRank(), elements)};
      const auto work = group.allreduce(tensors, {});
      work->wait();
      EXPECT_TRUE(work->isCompleted());
      EXPECT_TRUE(work->isSuccess());
      EXPECT_TRUE(work->result()[0].is_same(tensors[0]));
      expect_equal(tensors[0], total(group.getSize(), elements));
    }
    Tensors average{mine(group.getRank())};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    group.allreduce(average, options)->wait();
    expect_equal(average[0], total(group.getSize(), small) / group.getSize());
  });
}

TEST(GroupCollectives, SendTheValuesOfLazilyConjugatedTensors) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int size = group.getSize();
    const auto of = [](int rank) { return at::complex(mine(rank), mine(rank) + 1).conj(); };
    Tensors input{of(group.getRank())};
    std::vector<Tensors> gathered(1);
    for (int rank = 0; rank < size; ++rank) gathered[0].push_back(at::zeros_like(input[0]).conj());
    group.allgather(gathered, input, {})->wait();
    for (int rank = 0; rank < size; ++rank) expect_equal(gathered[0][static_cast<std::size_t>(rank)], of(rank));

    Tensors output{at::zeros({small}, at::kComplexFloat)};
    std::vector<Tensors> parts{Tensors(static_cast<std::size_t>(size), of(group.getRank()))};
    group.reduce_scatter(output, parts, {})->wait();
    at::Tensor sum = of(0).clone();
    for (int rank = 1; rank < size; ++rank) sum += of(rank);
    expect_equal(output[0], sum);
    group.allreduce(input, {})->wait();
    expect_equal(input[0], sum);
  });
}

TEST(GroupCollectives, RefuseOutputsWhoseElementsShareMemory) {
  run_everywhere([](ProcessGroupTutti& group) {
    const at::Tensor expanded = at::zeros({1}).expand({small});
    Tensors input{mine(0)};
    std::vector<Tensors> outputs{Tensors(static_cast<std::size_t>(group.getSize()), expanded)};
    EXPECT_NE(message_of<UsageError>([&] { group.allgather(outputs, input, {}); }).find("share memory"),
              std::string::npos);
    Tensors both{expanded};
    EXPECT_NE(message_of<UsageError>([&] { group.allreduce(both, {}); }).find("share memory"), std::string::npos);
  });
}

TEST(GroupCollectives, SupportTensorsWithAnyStrides) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int size = group.getSize();
    const auto base = at::stack({mine(group.getRank(), 6), at::zeros({6})}, 1);
    Tensors column{base.select(1, 0)};
    group.allreduce(column, {})->wait();
    expect_equal(base.select(1, 0), total(size, 6));
    expect_equal(base.select(1, 1), at::zeros({6}));

    Tensors turned{mine(group.getRank(), 6).view({2, 3}).t()};
    std::vector<Tensors> gathered(1);
    for (int rank = 0; rank < size; ++rank) gathered[0].push_back(at::zeros({2, 3}).t());
    group.allgather(gathered, turned, {})->wait();
    for (int rank = 0; rank < size; ++rank) expect_equal(gathered[0][rank], mine(rank, 6).view({2, 3}).t());
  });
}

TEST(GroupCollectives, CoalescedCollectivesCompleteTogether) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int rank = group.getRank();
    const int size = group.getSize();
    Tensors tensors{mine(rank), mine(rank, large)};
    group.allreduce_coalesced(tensors, {})->wait();
    expect_equal(tensors[0], total(size, small));
    expect_equal(tensors[1], total(size, large));

    Tensors inputs{mine(rank), mine(rank, 7)};
    Tensors outputs{at::zeros({size * small}), at::zeros({size, 7})};
    group.allgather_into_tensor_coalesced(outputs, inputs, {})->wait();
    for (int other = 0; other < size; ++other) {
      expect_equal(outputs[0].narrow(0, other * small, small), mine(other));
      expect_equal(outputs[1][other], mine(other, 7));
    }
    Tensors parts{at::zeros({small}), at::zeros({7})};
    group.reduce_scatter_tensor_coalesced(parts, outputs, {})->wait();
    expect_equal(parts[0], mine(rank) * size);
    expect_equal(parts[1], mine(rank, 7) * size);

    std::vector<Tensors> lists(static_cast<std::size_t>(size));
    for (auto& list : lists) list = {at::zeros({small}), at::zeros({7})};
    group.allgather_coalesced(lists, inputs, {})->wait();
    for (int other = 0; other < size; ++other) {
      expect_equal(lists[static_cast<std::size_t>(other)][0], mine(other));
      expect_equal(lists[static_cast<std::size_t>(other)][1], mine(other, 7));
    }
    Tensors none;
    group.allreduce_coalesced(none, {})->wait();
  });
}

TEST(GroupCollectives, SparseTensorsAreSummed) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int rank = group.getRank();
    const int size = group.getSize();
    // Rank r has rows 0 .. r - 1: rank 0 has none, and row 0 comes from all other ranks.
    const auto rows_of = [](int count) {
      at::Tensor dense = at::zeros({8, 3});
      dense.narrow(0, 0, count).fill_(count);
      return dense;
    };
    at::Tensor sum = at::zeros({8, 3});
    for (int other = 0; other < size; ++other) sum += rows_of(other);
    for (const std::int64_t sparse_dims : {1, 2}) {
      Tensors tensors{rows_of(rank).to_sparse(sparse_dims)};
      group.allreduce(tensors, {})->wait();
      expect_equal(tensors[0].to_dense(), sum);
    }

    Tensors tensors{rows_of(rank).to_sparse(1)};
    c10d::AllreduceOptions greatest;
    greatest.reduceOp = c10d::ReduceOp::MAX;
    EXPECT_EQ(message_of<UsageError>([&] { group.allreduce(tensors, greatest); }),
              "all_reduce of sparse tensors: the only supported ReduceOp is SUM.");
    if (size == 1) return;
    tensors = {at::zeros({8, 3 + rank % 2}).to_sparse(1)};
    EXPECT_NE(message_of<MismatchError>([&] { group.allreduce(tensors, {}); }).find("another shape"),
              std::string::npos);
  });
}

TEST(GroupCollectives, WithARoot) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int rank = group.getRank();
    const int size = group.getSize();
    for (int root = 0; root < size; ++root) {
      for (const auto elements : {std::int64_t{0}, small, large}) {
        Tensors sent{mine(rank, elements)};
        c10d::BroadcastOptions broadcast;
        broadcast.rootRank = root;
        group.broadcast(sent, broadcast)->wait();
        expect_equal(sent[0], mine(root, elements));

        Tensors summed{mine(rank, elements)};
        c10d::ReduceOptions reduce;
        reduce.rootRank = root;
        group.reduce(summed, reduce)->wait();
        expect_equal(summed[0], rank == root ? total(size, elements) : mine(rank, elements));

        Tensors input{mine(rank, elements)};
        std::vector<Tensors> gathered;
        if (rank == root) {
          gathered.resize(1);
          for (int other = 0; other < size; ++other) gathered[0].push_back(at::zeros({elements}));
        }
        c10d::GatherOptions gather;
        gather.rootRank = root;
        group.gather(gathered, input, gather)->wait();
        for (int other = 0; rank == root && other < size; ++other) {
          expect_equal(gathered[0][other], mine(other, elements));
        }

        Tensors received{at::zeros({elements})};
        std::vector<Tensors> scattered;
        if (rank == root) {
          scattered.resize(1);
          for (int other = 0; other < size; ++other) scattered[0].push_back(mine(10 * root + other, elements));
        }
        c10d::ScatterOptions scatter;
        scatter.rootRank = root;
        group.scatter(received, scattered, scatter)->wait();
        expect_equal(received[0], mine(10 * root + rank, elements));
      }
    }
  });
}

TEST(GroupCollectives, WithParts) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int rank = group.getRank();
    const int size = group.getSize();
    auto input = mine(rank, large);
    auto all = at::zeros({size, large});
    group._allgather_base(all, input, {})->wait();
    for (int other = 0; other < size; ++other) expect_equal(all[other], mine(other, large));

    auto part = at::zeros({large});
    group._reduce_scatter_base(part, all, {})->wait();
    expect_equal(part, mine(rank, large) * size);

    Tensors outputs{at::zeros({small})};
    std::vector<Tensors> lists(1);
    for (int other = 0; other < size; ++other) lists[0].push_back(mine(rank + other));
    group.reduce_scatter(outputs, lists, {})->wait();
    expect_equal(outputs[0], total(size, small) + size * rank);

    Tensors to;
    Tensors from;
    for (int other = 0; other < size; ++other) {
      to.push_back(at::zeros({small}));
      from.push_back(mine(10 * rank + other));
    }
    group.alltoall(to, from, {})->wait();
    for (int other = 0; other < size; ++other) expect_equal(to[other], mine(10 * other + rank));
    auto flat_to = at::zeros({size, small});
    auto flat_from = at::stack(from);
    std::vector<std::int64_t> even;
    group.alltoall_base(flat_to, flat_from, even, even, {})->wait();
    for (int other = 0; other < size; ++other) expect_equal(flat_to[other], mine(10 * other + rank));
    group.alltoall(from, from, {})->wait();
    expect_equal(at::stack(from), flat_to);
    auto in_place = flat_from.clone().repeat({1, 100'000});
    group.alltoall_base(in_place, in_place, even, even, {})->wait();
    expect_equal(in_place, flat_to.repeat({1, 100'000}));
    group.barrier({})->wait();
  });
}

TEST(GroupWork, AFutureCompletesWithoutAWaiter) {
  run_everywhere([](ProcessGroupTutti& group) {
    for (const auto elements : {small, large}) {
      Tensors tensors{mine(group.getRank(), elements)};
      const auto future = group.allreduce(tensors, {})->getFuture();
      std::promise<at::Tensor> seen;
      future->addCallback([&](c10::ivalue::Future& ended) { seen.set_value(ended.value().toTensorVector()[0]); });
      expect_equal(seen.get_future().get(), total(group.getSize(), elements));
    }
  });
}

// After wait() the future of the work has completed.
TEST(GroupWork, AFutureCompletesBeforeItsWork) {
  std::promise<void> asked;
  const auto is_asked = asked.get_future().share();
  run_groups(2, [&](ProcessGroupTutti& group) {
    Tensors tensors{mine(group.getRank())};
    if (group.getRank() == 1) {
      is_asked.wait();
      group.allreduce(tensors, {})->wait();
      return;
    }
    std::optional<bool> work_had_ended;
    const auto work = group.allreduce(tensors, {});
    work->getFuture()->addCallback([&](c10::ivalue::Future&) { work_had_ended = work->isCompleted(); });
    asked.set_value();
    work->wait();
    EXPECT_EQ(work_had_ended, std::optional(false));
  });
}

// Futures of many operations in flight at once: a future occupies no operation number.
// A deadline that far ahead is beyond the clock: timedelta.max in Python.
TEST(GroupWork, WaitsWithTheLongestTimeout) {
  std::promise<void> called;
  const auto is_called = called.get_future().share();
  run_groups(2, [&](ProcessGroupTutti& group) {
    Tensors tensors{mine(group.getRank())};
    if (group.getRank() == 1) {
      is_called.wait();
      group.allreduce(tensors, {})->wait();
      return;
    }
    const auto work = group.allreduce(tensors, {});
    called.set_value();
    EXPECT_NO_THROW(work->wait(std::chrono::milliseconds::max()));
  });
}

TEST(GroupWork, ManyInFlight) {
  run_groups(2, [](ProcessGroupTutti& group) {
    std::vector<Tensors> tensors;
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back({mine(group.getRank(), i % 2 == 0 ? small : large)});
      futures.push_back(group.allreduce(tensors.back(), {})->getFuture());
    }
    for (const auto& future : futures) future->wait();
    EXPECT_EQ(group.getSequenceNumberForGroup(), 20);
    for (int i = 0; i < 20; ++i) expect_equal(tensors[i][0], total(2, tensors[i][0].numel()));
  });
}

TEST(GroupErrors, OptionsMustNotBeNull) {
  using Options = ProcessGroupTutti::Options;
  EXPECT_EQ(message_of<UsageError>([] {
              const ProcessGroupTutti group(make_thread_communicators(1).front(), c10::intrusive_ptr<Options>());
            }),
            "ProcessGroupTutti: the options are null.");
}

TEST(GroupErrors, WrongArgumentsThrowBeforeAnythingIsSent) {
  run_groups(2, [](ProcessGroupTutti& group) {
    Tensors none;
    Tensors two{mine(0), mine(0)};
    Tensors one{mine(group.getRank())};
    EXPECT_EQ(message_of<UsageError>([&] { group.allreduce(none, {}); }),
              "all_reduce: a rank passes one tensor, not 0.");
    EXPECT_EQ(message_of<UsageError>([&] { group.broadcast(two, {}); }), "broadcast: a rank passes one tensor, not 2.");
    c10d::BroadcastOptions outside;
    outside.rootRank = 2;
    EXPECT_EQ(message_of<UsageError>([&] { group.broadcast(one, outside); }),
              "broadcast: root 2 is not a rank of this group of 2.");
    Tensors sparse{mine(0).to_sparse()};
    EXPECT_EQ(message_of<UsageError>([&] { group.broadcast(sparse, {}); }), "broadcast: the tensor is not dense.");
    Tensors away{at::empty({2}, at::kMeta)};
    EXPECT_NE(message_of<UsageError>([&] { group.allreduce(away, {}); }).find("on the meta device"), std::string::npos);
    std::vector<Tensors> short_list{{at::zeros({small})}};
    EXPECT_EQ(message_of<UsageError>([&] { group.allgather(short_list, one, {}); }),
              "all_gather: a list of 1 tensors for 2 ranks; it must hold one for each.");
    std::vector<Tensors> wrong_shape{{at::zeros({small}), at::zeros({small + 1})}};
    EXPECT_EQ(message_of<UsageError>([&] { group.allgather(wrong_shape, one, {}); }),
              "all_gather: the tensor of rank 1 is float [6], but this rank's own tensor is float [5]; they must have "
              "the same dtype, shape and device.");
    Tensors second_wrong{mine(group.getRank()), at::ones({small}, at::kInt)};
    c10d::AllreduceCoalescedOptions average;
    average.reduceOp = c10d::ReduceOp::AVG;
    EXPECT_NE(message_of<UsageError>([&] { group.allreduce_coalesced(second_wrong, average); }).find("floating dtype"),
              std::string::npos);
    expect_equal(second_wrong[0], mine(group.getRank()));
    // The group stays usable.
    group.allreduce(one, {})->wait();
    expect_equal(one[0], total(2, small));
  });
}

TEST(GroupErrors, AMismatchErrorReachesWorkAndFuture) {
  run_groups(2, [](ProcessGroupTutti& group) {
    Tensors tensors{mine(0, group.getRank() + 1)};
    const auto work = group.allreduce(tensors, {});
    EXPECT_NE(message_of<MismatchError>([&] { work->wait(); }).find("rank 0 calls all_reduce(float [1], sum)"),
              std::string::npos);
    EXPECT_FALSE(work->isSuccess());
    EXPECT_NE(work->exception(), nullptr);
    EXPECT_TRUE(work->getFuture()->hasError());
    group.barrier({})->wait();
  });
}

TEST(GroupErrors, ADeadlineNamesTheAbsentRank) {
  std::promise<void> has_timed_out;
  const auto timed_out = has_timed_out.get_future().share();
  run_groups(2, [&](ProcessGroupTutti& group) {
    if (group.getRank() == 1) {
      timed_out.wait();
      return;
    }
    Tensors tensors{mine(0)};
    c10d::AllreduceOptions options;
    options.timeout = std::chrono::milliseconds(200);
    const auto work = group.allreduce(tensors, options);
    EXPECT_NE(message_of<TimeoutError>([&] { work->wait(); }).find("rank 1 did not enter the call within 200 ms"),
              std::string::npos);
    has_timed_out.set_value();
  });
}

}  // namespace
}  // namespace tutti::test::collectives_test
