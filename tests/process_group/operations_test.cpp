// Ranks: 1, 2 and 3 as threads, through shared memory and over TCP. Dtypes, operations, uneven parts, abort
// and shutdown.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <barrier>
#include <future>

#include "process_group/groups.h"
#include "tutti/core/error.h"

namespace tutti::test::operations_test {
namespace {

using c10d::ReduceOp;
using std::chrono::milliseconds;

void expect_equal(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(found, expected)) << found.flatten().slice(0, 0, 8) << "expected\n"
                                          << expected.flatten().slice(0, 0, 8);
}

c10d::AllreduceOptions with(ReduceOp::RedOpType op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return options;
}

at::Tensor reduced(ProcessGroupTutti& group, const at::Tensor& tensor, ReduceOp::RedOpType op) {
  Tensors tensors{tensor.clone()};
  group.allreduce(tensors, with(op))->wait();
  return tensors[0];
}

const std::vector<at::ScalarType> dtypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,
                                         at::kByte,  at::kShort,  at::kInt,  at::kLong};

// With a few elements, and with more than the payload of a call.
TEST(Operations, EveryDtype) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int size = group.getSize();
    const int rank = group.getRank();
    for (const auto dtype : dtypes) {
      for (const std::int64_t elements : {3, 20'000}) {
        const auto ones = at::ones({elements}, dtype);
        expect_equal(reduced(group, ones * (rank + 1), ReduceOp::SUM), ones * (size * (size + 1) / 2));
        expect_equal(reduced(group, ones * 2, ReduceOp::PRODUCT), ones * (1 << size));
        expect_equal(reduced(group, ones * (rank + 1), ReduceOp::MIN), ones);
        expect_equal(reduced(group, ones * (rank + 1), ReduceOp::MAX), ones * size);
        if (at::isFloatingType(dtype)) {
          expect_equal(reduced(group, ones * (2 * rank), ReduceOp::AVG), ones * (size - 1));
          continue;
        }
        const auto bits = at::full({elements}, 8 | (1 << rank), dtype);
        const int low = (1 << size) - 1;
        expect_equal(reduced(group, bits, ReduceOp::BOR), at::full({elements}, 8 | low, dtype));
        expect_equal(reduced(group, bits, ReduceOp::BAND), at::full({elements}, size == 1 ? 9 : 8, dtype));
        expect_equal(reduced(group, bits, ReduceOp::BXOR), at::full({elements}, (size % 2 == 1 ? 8 : 0) | low, dtype));
      }
    }
  });
}

TEST(Operations, BoolAndComplex) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int size = group.getSize();
    const auto mine = at::arange(4).eq(group.getRank());  // true at the index of this rank
    const auto any = at::arange(4).lt(size);
    for (const auto op : {ReduceOp::SUM, ReduceOp::MAX, ReduceOp::BOR}) expect_equal(reduced(group, mine, op), any);
    const auto all = size == 1 ? mine : at::zeros({4}, at::kBool);
    for (const auto op : {ReduceOp::PRODUCT, ReduceOp::MIN, ReduceOp::BAND}) {
      expect_equal(reduced(group, mine, op), all);
    }
    for (const auto dtype : {at::kComplexFloat, at::kComplexDouble}) {
      const auto turned = at::full({5}, c10::complex<double>(1, 2), dtype);
      expect_equal(reduced(group, turned, ReduceOp::SUM), turned * size);
    }
  });
}

TEST(Operations, UndefinedOperationsThrow) {
  run_groups(2, [](ProcessGroupTutti& group) {
    EXPECT_EQ(message_of<UsageError>([&] { reduced(group, at::ones({2}), ReduceOp::BAND); }),
              "all_reduce: bitwise operations need an integer dtype or bool, not float [2].");
    EXPECT_NE(message_of<UsageError>([&] {
                reduced(group, at::ones({2}, at::kLong), ReduceOp::AVG);
              }).find("mean needs a floating dtype"),
              std::string::npos);
    Tensors tensors{at::ones({2})};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::makePreMulSum(2.0);
    EXPECT_NE(message_of<UsageError>([&] { group.allreduce(tensors, options); }).find("PREMUL_SUM is not supported"),
              std::string::npos);
    group.barrier({})->wait();
  });
}

// Rank r sends r + other + `more` rows to rank `other`.
TEST(Parts, OfDifferentSizes) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int size = group.getSize();
    const int rank = group.getRank();
    for (const std::int64_t more : {0, 70'000}) {
      std::vector<std::int64_t> rows;
      std::int64_t total = 0;
      for (int other = 0; other < size; ++other) total += rows.emplace_back(rank + other + more);
      auto input = at::arange(2 * total, at::kLong).view({total, 2}) + 1'000'000 * rank;
      auto output = at::zeros({total, 2}, at::kLong);
      group.alltoall_base(output, input, rows, rows, {})->wait();
      Tensors to;
      Tensors from;
      std::int64_t begin = 0;
      for (int other = 0; other < size; ++other) {
        std::int64_t there = 0;  // where this rank's part begins on `other`
        for (int before = 0; before < rank; ++before) there += other + before + more;
        const auto count = rows[static_cast<std::size_t>(other)];
        const auto expected =
            at::arange(2 * there, 2 * (there + count), at::kLong).view({count, 2}) + 1'000'000 * other;
        expect_equal(output.narrow(0, begin, count), expected);
        from.push_back(input.narrow(0, begin, count));
        to.push_back(at::zeros({2, count}, at::kLong).t());
        begin += count;
      }
      group.alltoall(to, from, {})->wait();
      for (int other = 0; other < size; ++other) {
        expect_equal(to[other], output.narrow(0, 0, output.size(0)).split_with_sizes(rows)[other]);
      }
    }
  });
}

TEST(Parts, ThatDoNotFitThrowOnAllRanks) {
  run_groups(3, [](ProcessGroupTutti& group) {
    Tensors from{at::zeros({1}), at::zeros({1}), at::zeros({1})};
    Tensors to{at::zeros({1}), at::zeros({group.getRank() == 2 ? 2 : 1}), at::zeros({1})};
    EXPECT_NE(message_of<MismatchError>([&] {
                group.alltoall(to, from, {})->wait();
              }).find("rank 1 sends 4 bytes to rank 2, which expects 8 from it. Nothing was exchanged."),
              std::string::npos);
    auto flat = at::zeros({6});
    std::vector<std::int64_t> even;
    std::vector<std::int64_t> wrong{1, 2, 4};
    EXPECT_NE(message_of<UsageError>([&] {
                group.alltoall_base(flat, flat, wrong, even, {});
              }).find("3 split sizes for the output float [6]: there must be one for each of 3 ranks, with the sum 6"),
              std::string::npos);
    group.barrier({})->wait();
  });
}

TEST(Coalescing, OneWorkForAll) {
  run_everywhere([](ProcessGroupTutti& group) {
    const int size = group.getSize();
    Tensors first{at::ones({3})};
    Tensors second{at::ones({200'000})};
    std::vector<Tensors> gathered(1);
    for (int rank = 0; rank < size; ++rank) gathered[0].push_back(at::zeros({3}));
    Tensors input{at::full({3}, group.getRank(), at::kFloat)};
    group.startCoalescing();
    group.allreduce(first, {});
    group.allreduce(second, {});
    group.allgather(gathered, input, {});
    const auto work = group.endCoalescing();
    work->wait();
    expect_equal(first[0], at::full({3}, size, at::kFloat));
    expect_equal(second[0], at::full({200'000}, size, at::kFloat));
    for (int rank = 0; rank < size; ++rank) expect_equal(gathered[0][rank], at::full({3}, rank, at::kFloat));
    EXPECT_NE(message_of<UsageError>([&] { group.endCoalescing(); }).find("startCoalescing was not called"),
              std::string::npos);
  });
}

// PyTorch's _coalescing_manager does not call endCoalescing() if its body throws.
TEST(Coalescing, ANewListDoesNotContainTheOperationsOfAnOpenOne) {
  for (const char* backend : {"auto", "tcp"}) {
    run_groups(
        2,
        [](ProcessGroupTutti& group) {
          const int peer = 1 - group.getRank();
          Tensors received{at::zeros({3})};
          Tensors sent{at::ones({3})};
          group.startCoalescing();
          const auto receive = group.recv(received, peer, 0);
          EXPECT_THROW(group.send(sent, 2, 0), UsageError);
          group.startCoalescing();
          group.allreduce(sent, {});
          group.endCoalescing()->wait();
          expect_equal(sent[0], at::full({3}, 2, at::kFloat));
          const auto send = group.send(sent, peer, 0);
          receive->wait();
          send->wait();
          expect_equal(received[0], sent[0]);
        },
        backend);
  }
}

TEST(MonitoredBarrier, PassesOrNamesTheAbsentRanks) {
  std::barrier<> looked(3);
  run_groups(
      3,
      [&](ProcessGroupTutti& group) {
        group.monitoredBarrier({}, false);
        group.monitoredBarrier({}, true);
        c10d::BarrierOptions brief;
        brief.timeout = milliseconds(300);
        const auto once = [&](bool wait_for_all, const std::string& names) {
          if (group.getRank() == 0) {
            EXPECT_EQ(message_of<TimeoutError>([&] { group.monitoredBarrier(brief, wait_for_all); }),
                      "monitored_barrier: " + names + " failed to pass monitoredBarrier within 300 ms.");
          }
          looked.arrive_and_wait();
          // Late ranks receive the outcome.
          if (group.getRank() > 0) {
            EXPECT_NE(message_of<PeerError>([&] { group.monitoredBarrier(brief, wait_for_all); }).find("from rank 0"),
                      std::string::npos);
          }
        };
        once(false, "Rank 1");
        once(true, "Ranks 1, 2");
        group.monitoredBarrier({}, false);
        Tensors tensors{at::ones({3})};
        group.allreduce(tensors, {})->wait();
        group.barrier({})->wait();
      },
      "auto");
}

// A rank that enters a call after its peer has timed out throws as well.
TEST(Failures, ALateRankThrowsToo) {
  for (const char* backend : {"auto", "tcp"}) {
    for (const std::int64_t elements : {std::int64_t{1}, std::int64_t{1024}, std::int64_t{100'000}}) {
      std::promise<void> has_timed_out;
      const auto timed_out = has_timed_out.get_future().share();
      std::barrier<> end(2);
      run_groups(
          2,
          [&](ProcessGroupTutti& group) {
            Tensors tensors{at::ones({elements})};
            if (group.getRank() == 0) {
              c10d::AllreduceOptions options;
              options.timeout = milliseconds(100);
              EXPECT_NE(message_of<TimeoutError>([&] { group.allreduce(tensors, options)->wait(); }).find("rank 1"),
                        std::string::npos);
              has_timed_out.set_value();
            } else {
              timed_out.wait();
              const auto text = message_of<PeerError>([&] { group.allreduce(tensors, {})->wait(); });
              EXPECT_NE(text.find("timed out waiting for this rank (1)"), std::string::npos) << text;
            }
            const auto later = message_of<PeerError>([&] { group.allreduce(tensors, {})->wait(); });
            EXPECT_NE(later.find("has failed and cannot be used"), std::string::npos) << later;
            end.arrive_and_wait();
          },
          backend);
    }
  }
}

TEST(Failures, AbortEndsInFlightOperationsOnAllRanks) {
  for (const char* backend : {"auto", "tcp"}) {
    std::barrier<> end(2);
    std::promise<void> waiting;
    const auto peer_waits = waiting.get_future().share();
    run_groups(
        2,
        [&](ProcessGroupTutti& group) {
          Tensors tensors{at::ones({100'000})};
          Tensors received{at::ones({3})};
          group.barrier({})->wait();
          if (group.getRank() == 0) {
            peer_waits.wait();
            auto own = at::zeros({3});
            Tensors mine{own};
            const auto receive = group.recv(mine, 1, 0);
            group.abort();
            EXPECT_NE(message_of<PeerError>([&] { receive->wait(); }).find("aborted"), std::string::npos);
            EXPECT_NE(message_of<UsageError>([&] { group.allreduce(tensors, {}); }).find("was shut down"),
                      std::string::npos);
          } else {
            const auto work = group.allreduce(tensors, {});
            waiting.set_value();
            const auto text = message_of<PeerError>([&] { work->wait(); });
            EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
          }
          end.arrive_and_wait();
        },
        backend);
  }
}

// The rank that aborts has an operation in flight itself.
TEST(Failures, AbortEndsTheOperationsOfTheCallingRank) {
  for (const char* backend : {"auto", "tcp"}) {
    std::barrier<> end(2);
    run_groups(
        2,
        [&](ProcessGroupTutti& group) {
          group.barrier({})->wait();
          if (group.getRank() == 0) {
            Tensors tensors{at::ones({100'000})};
            const auto work = group.allreduce(tensors, {});
            group.abort();
            EXPECT_NE(message_of<PeerError>([&] { work->wait(); }).find("aborted"), std::string::npos);
          }
          end.arrive_and_wait();
        },
        backend);
  }
}

TEST(Shutdown, EveryLaterCallThrows) {
  run_groups(1, [](ProcessGroupTutti& group) {
    group.shutdown();
    at::Tensor tensor = at::ones({2}), other = at::ones({2});
    Tensors one{tensor}, another{other};
    std::vector<Tensors> lists{{other}};
    std::vector<std::int64_t> equal;
    const std::vector<std::function<void()>> calls{[&] { group.allreduce(one, {}); },
                                                   [&] { group.allreduce_coalesced(one, {}); },
                                                   [&] { group.reduce(one, {}); },
                                                   [&] { group.broadcast(one, {}); },
                                                   [&] { group.allgather(lists, one, {}); },
                                                   [&] { group.allgather_coalesced(lists, one, {}); },
                                                   [&] { group._allgather_base(other, tensor, {}); },
                                                   [&] { group.allgather_into_tensor_coalesced(another, one, {}); },
                                                   [&] { group.gather(lists, one, {}); },
                                                   [&] { group.scatter(one, lists, {}); },
                                                   [&] { group.reduce_scatter(one, lists, {}); },
                                                   [&] { group._reduce_scatter_base(other, tensor, {}); },
                                                   [&] { group.reduce_scatter_tensor_coalesced(another, one, {}); },
                                                   [&] { group.alltoall_base(other, tensor, equal, equal, {}); },
                                                   [&] { group.alltoall(another, one, {}); },
                                                   [&] { group.barrier({}); },
                                                   [&] { group.send(one, 0, 0); },
                                                   [&] { group.recv(one, 0, 0); },
                                                   [&] { group.recvAnysource(one, 0); },
                                                   [&] { group.monitoredBarrier({}, false); }};
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_NE(message_of<UsageError>(calls[i]).find("was shut down"), std::string::npos) << "call " << i;
    }
  });
}

TEST(Split, OnlyMembersCallIt) {
  for (const char* backend : {"auto", "tcp"}) {
    run_groups(
        3,
        [](ProcessGroupTutti& group) {
          for (const std::vector<int>& ranks : {std::vector<int>{2, 0}, std::vector<int>{1}, std::vector<int>{2, 0}}) {
            if (std::find(ranks.begin(), ranks.end(), group.getRank()) == ranks.end()) {
              if (group.getRank() == 1) {
                EXPECT_EQ(group.split(nullptr, ranks, nullptr).get(), nullptr);
              }
              continue;
            }
            const auto part = group.split(nullptr, ranks, nullptr);
            EXPECT_EQ(part->getSize(), static_cast<int>(ranks.size()));
            EXPECT_EQ(ranks[static_cast<std::size_t>(part->getRank())], group.getRank());
            for (const std::int64_t elements : {3, 100'000}) {
              Tensors tensors{at::ones({elements})};
              part->allreduce(tensors, {})->wait();
              expect_equal(tensors[0], at::full({elements}, part->getSize(), at::kFloat));
            }
            if (part->getSize() == 1) continue;
            Tensors sent{at::full({2}, part->getRank(), at::kFloat)};
            Tensors received{at::zeros({2})};
            const auto receive = part->recv(received, 1 - part->getRank(), 0);
            part->send(sent, 1 - part->getRank(), 0)->wait();
            receive->wait();
            expect_equal(received[0], at::full({2}, 1 - part->getRank(), at::kFloat));
          }
          group.barrier({})->wait();
        },
        backend);
  }
}

TEST(Deadlines, OfAGroup) {
  std::barrier<> end(2);
  run_groups(2, [&](ProcessGroupTutti& group) {
    EXPECT_NE(message_of<UsageError>([&] { group.setTimeout(milliseconds(0)); }).find("must be positive"),
              std::string::npos);
    group.setTimeout(milliseconds(150));
    if (group.getRank() == 0) {
      EXPECT_NE(message_of<TimeoutError>([&] { group.barrier({})->wait(); }).find("150 ms"), std::string::npos);
    }
    end.arrive_and_wait();
  });
}

}  // namespace
}  // namespace tutti::test::operations_test
