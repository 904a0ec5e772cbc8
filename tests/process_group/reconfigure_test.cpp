// Ranks: 1 to 3 as threads, and 2 processes. Groups that get other ranks: what ranks agree and disagree on.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>

#include "process_group/groups.h"
#include "process_group/reconfigure_handle.h"
#include "support/ranks.h"
#include "tutti/core/error.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace tutti::test::reconfigure_test {
namespace {

using process_group::ordered_handles;
using std::chrono::milliseconds;
using Handles = std::vector<std::string>;

constexpr milliseconds long_timeout = std::chrono::seconds(30);
constexpr milliseconds short_timeout = std::chrono::seconds(2);

/// What the ranks use to exchange handles and to wait for one another, besides the group.
class OutOfBand {
 public:
  /// Returns the handles of all ranks of the group, by rank.
  Handles exchange(const ProcessGroupTutti& group, const std::string& name = "handles") const {
    store_->set(name + std::to_string(group.getRank()), group.get_reconfigure_handle());
    Handles handles;
    for (int rank = 0; rank < group.getSize(); ++rank)
      handles.push_back(store_->get_to_str(name + std::to_string(rank)));
    return handles;
  }
  void wait_for_all(const ProcessGroupTutti& group, const std::string& name) const { exchange(group, name); }

 private:
  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

c10d::ReconfigureOptions options_of(std::int64_t uuid, const Handles& handles, milliseconds timeout = long_timeout) {
  c10d::ReconfigureOptions options;
  options.uuid = uuid;
  options.handles = handles;
  options.timeout = timeout;
  return options;
}

double sum_over(ProcessGroupTutti& group) {
  Tensors tensors{at::full({1000}, group.getRank() + 1.0)};
  group.allreduce(tensors, {})->wait();
  return tensors[0][999].item<double>();
}

TEST(ReconfigureHandles, KeepTheOrderOfAList) {
  const Handles list{"tutti 1 0 a 1 k", "tutti 0 new a 2 k", "tutti 0 0 a 3 k"};
  EXPECT_EQ(ordered_handles(list), list);
  EXPECT_EQ(process_group::describe_members(list, {0, 1}), "rank 0 (before: rank 1), rank 1 (new)");
}

TEST(ReconfigureHandles, OfASetComeByRankAndNewOnesLast) {
  const Handles by_rank{"tutti 2 -7 a 1 k", "tutti 10 -7 a 1 k", "tutti 0 new a 1 k", "tutti 1 new a 1 k"};
  EXPECT_EQ(ordered_handles(std::unordered_set<std::string>(by_rank.begin(), by_rank.end())), by_rank);
}

TEST(ReconfigureHandles, RefuseWhatIsNone) {
  const auto message = [](const Handles& handles) { return message_of<UsageError>([&] { ordered_handles(handles); }); };
  EXPECT_NE(message({}).find("there are no handles"), std::string::npos);
  EXPECT_NE(message({"tutti 1 0 a 1 k", "tutti 1 0 a 1 k"}).find("the ranks 0 and 1 are equal"), std::string::npos);
  for (const char* wrong : {"", "gloo:0:-1:0:host:29500", "tutti", "tutti 1 0", "tutti -1 0 a 1 k", "tutti 1 x a 1 k",
                            "tutti 1 99999999999999999999 a 1 k"}) {
    EXPECT_NE(message({wrong}).find("is no handle of the backend tutti"), std::string::npos) << wrong;
  }
  EXPECT_EQ(message({"another backend's handle with a key"}).find("key"), std::string::npos);
}

TEST(Reconfigure, ReordersTheRanks) {
  for (const char* backend : {"auto", "tcp"}) {
    const OutOfBand out_of_band;
    run_groups(
        3,
        [&](ProcessGroupTutti& group) {
          EXPECT_TRUE(group.supportsReconfigure() && group.isInitialized());
          const int before = group.getRank();
          for (const std::int64_t uuid : {7, 3, -2}) {
            auto handles = out_of_band.exchange(group, std::to_string(uuid) + " ");
            std::ranges::reverse(handles);
            const int expected = 2 - group.getRank();
            group.reconfigure(options_of(uuid, handles))->wait();
            EXPECT_EQ(group.getRank(), expected);
            EXPECT_EQ(group.getSize(), 3);
            EXPECT_EQ(group.getSequenceNumberForGroup(), 0U);
            EXPECT_EQ(sum_over(group), 6.0);
          }
          EXPECT_EQ(group.getRank(), 2 - before);
          EXPECT_EQ(group.getBackendOptions()->timeout, std::chrono::seconds(60));
          const auto pair = group.split({}, {0, 2}, {});
          if (pair) {
            Tensors tensors{at::full({1}, 1.0)};
            pair->allreduce(tensors, {})->wait();
            EXPECT_EQ(tensors[0].item<double>(), 2.0);
          }
        },
        backend);
  }
}

TEST(Reconfigure, ToOneRank) {
  run_groups(2, [](ProcessGroupTutti& group) {
    group.reconfigure(options_of(1, {group.get_reconfigure_handle()}))->wait();
    EXPECT_EQ(group.getSize(), 1);
    EXPECT_EQ(sum_over(group), 1.0);
  });
}

TEST(Reconfigure, ConnectsRanksThatWereInNoGroup) {
  const OutOfBand out_of_band;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&out_of_band, rank] {
      auto options = c10::make_intrusive<ProcessGroupTutti::Options>(std::chrono::seconds(60));
      options->enable_reconfigure = true;
      ProcessGroupTutti group({}, rank, 2, options);
      EXPECT_FALSE(group.isInitialized());
      EXPECT_EQ(message_of<UsageError>([&] { sum_over(group); }),
                "all_reduce: this process group has no ranks yet: call reconfigure first.");
      EXPECT_NE(message_of<UsageError>([&] { group.communicator(); }).find("no ranks yet"), std::string::npos);
      const auto handles = out_of_band.exchange(group);
      auto with_set = options_of(5, {});
      with_set.handles = std::unordered_set<std::string>(handles.begin(), handles.end());
      group.reconfigure(with_set)->wait();
      EXPECT_TRUE(group.isInitialized());
      EXPECT_EQ(group.getRank(), rank);
      EXPECT_EQ(sum_over(group), 3.0);
    });
  }
  for (auto& thread : threads) thread.join();
}

const RankProgram deadlocks("reconfigure_deadlocks", [] {
  const auto environment = read_environment();
  c10d::TCPStoreOptions store_options;
  store_options.port = environment.master_port;
  store_options.isServer = environment.rank == 0;
  const auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, store_options);
  ProcessGroupTutti group(store, environment.rank, 2, c10::make_intrusive<ProcessGroupTutti::Options>(long_timeout));
  store->c10d::Store::set("handle " + std::to_string(environment.rank), group.get_reconfigure_handle());
  group.reconfigure(options_of(2, {store->get_to_str("handle 0"), store->get_to_str("handle 1")}))->wait();
  const Communicator job = group.communicator();
  const Communicator other = job.duplicate("other");
  const auto text = message_of<MismatchError>([&] { (group.getRank() == 0 ? other : job).barrier().wait(); });
  EXPECT_NE(text.find("of 'job', which rank 0 has not called"), std::string::npos) << text;
});

TEST(Reconfigure, ADeadlockNamesTheGroupAsBefore) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer uses CPU time all the time, so no deadlock is certain";
#endif
  expect_success(run_processes(deadlocks, 2));
}

TEST(Reconfigure, FailsCallsInFlightFirst) {
  const OutOfBand out_of_band;
  run_groups(2, [&](ProcessGroupTutti& group) {
    Tensors tensors{at::full({10}, 1.0)};
    const auto work = group.getRank() == 0 ? group.allreduce(tensors, {}) : nullptr;
    group.reconfigure(options_of(4, out_of_band.exchange(group)))->wait();
    EXPECT_EQ(sum_over(group), 3.0);
    if (!work) return;
    EXPECT_TRUE(work->isCompleted());
    EXPECT_NE(message_of<PeerError>([&] { work->wait(); }).find("rank 0 left the group with calls in flight"),
              std::string::npos);
  });
}

TEST(Reconfigure, FailsReceivesThatArePending) {
  const OutOfBand out_of_band;
  run_groups(2, [&](ProcessGroupTutti& group) {
    std::vector<at::Tensor> received{at::zeros({2})};
    const auto work = group.recv(received, 1 - group.getRank(), 0);
    group.reconfigure(options_of(1, out_of_band.exchange(group)))->wait();
    EXPECT_NE(message_of<PeerError>([&] { work->wait(); }).find("has left the "), std::string::npos);
    EXPECT_EQ(sum_over(group), 3.0);
  });
}

TEST(Reconfigure, RefusesWrongArguments) {
  const OutOfBand out_of_band;
  run_groups(2, [&](ProcessGroupTutti& group) {
    const auto handles = out_of_band.exchange(group);
    const auto message = [&](std::int64_t uuid, const Handles& list, milliseconds timeout = long_timeout) {
      return message_of<UsageError>([&] { group.reconfigure(options_of(uuid, list, timeout)); });
    };
    const auto other = handles[static_cast<std::size_t>(1 - group.getRank())];
    EXPECT_NE(message(1, {other}).find("the handle of this rank, rank " + std::to_string(group.getRank())),
              std::string::npos);
    EXPECT_NE(message(1, handles, milliseconds(0)).find("the timeout must be positive"), std::string::npos);
    group.reconfigure(options_of(1, handles))->wait();
    EXPECT_NE(message(2, handles).find("A handle serves one call of reconfigure"), std::string::npos);
    EXPECT_NE(message(1, out_of_band.exchange(group, "again")).find("this uuid was used already"), std::string::npos);
    EXPECT_EQ(sum_over(group), 3.0);
  });
}

TEST(Reconfigure, TakesTheLongestTimeout) {
  const OutOfBand out_of_band;
  run_groups(3, [&](ProcessGroupTutti& group) {
    group.reconfigure(options_of(1, out_of_band.exchange(group), milliseconds::max()))->wait();
    EXPECT_EQ(sum_over(group), 6.0);
  });
}

/// Every rank of a group of 3 passes what `arguments` returns. Returns the messages of the Ts that they throw.
template <typename T>
Handles refused(const std::function<c10d::ReconfigureOptions(int rank, const Handles&)>& arguments) {
  const OutOfBand out_of_band;
  Handles messages(3);
  run_groups(3, [&](ProcessGroupTutti& group) {
    const auto handles = out_of_band.exchange(group);
    messages[static_cast<std::size_t>(group.getRank())] =
        message_of<T>([&] { group.reconfigure(arguments(group.getRank(), handles)); });
    out_of_band.wait_for_all(group, "all were refused");
    EXPECT_EQ(sum_over(group), 6.0);  // the old group
    group.reconfigure(options_of(100, out_of_band.exchange(group, "agreed")))->wait();
    EXPECT_EQ(sum_over(group), 6.0);
  });
  return messages;
}

TEST(Reconfigure, NamesRanksThatPassAnotherUuid) {
  const auto messages =
      refused<UsageError>([](int rank, const Handles& handles) { return options_of(rank == 1 ? 8 : 7, handles); });
  for (const auto& message : messages) {
    EXPECT_NE(message.find(": rank 1 passed uuid 8 and handles "), std::string::npos) << message;
    EXPECT_NE(message.find(", rank 0 uuid 7 and handles "), std::string::npos) << message;
  }
}

TEST(Reconfigure, NamesRanksThatPassOtherHandles) {
  const auto messages = refused<UsageError>([](int rank, const Handles& handles) {
    auto list = handles;
    if (rank == 2) list[1] = "tutti 1 new local:another 0 -";
    return options_of(7, list);
  });
  for (const auto& message : messages) {
    EXPECT_NE(message.find(": rank 2 passed uuid 7 and handles "), std::string::npos) << message;
    EXPECT_NE(message.find("Every rank must pass the same uuid, handles and options."), std::string::npos) << message;
  }
}

TEST(Reconfigure, NamesRanksThatPassMoreHandles) {
  const OutOfBand out_of_band;
  run_groups(2, [&](ProcessGroupTutti& group) {
    auto handles = out_of_band.exchange(group);
    if (group.getRank() == 0) handles.emplace_back("tutti 0 new local:another 0 -");
    const auto message = message_of<UsageError>([&] { group.reconfigure(options_of(7, handles)); });
    EXPECT_NE(message.find("rank 1 has a WORLD_SIZE of 2 where the coordinator has 3"), std::string::npos) << message;
    out_of_band.wait_for_all(group, "all were refused");
  });
}

TEST(Reconfigure, RanksThatAgreeOnNoFirstRankTimeOut) {
  const auto messages = refused<TimeoutError>([](int rank, const Handles& handles) {
    return options_of(7, rank == 2 ? Handles{handles[2], handles[1], handles[0]} : handles, short_timeout);
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NE(messages[static_cast<std::size_t>(rank)].find(
                  "reconfigure to generation 7: rank 2 (before: rank 2) did not join within 2 s"),
              std::string::npos)
        << messages[static_cast<std::size_t>(rank)];
  }
  EXPECT_NE(messages[2].find("rank 1 (before: rank 1), rank 2 (before: rank 0) did not join"), std::string::npos)
      << messages[2];
}

TEST(Reconfigure, NamesAnAbsentRank) {
  for (const int absent : {0, 2}) {
    const OutOfBand out_of_band;
    run_groups(3, [&](ProcessGroupTutti& group) {
      const auto handles = out_of_band.exchange(group);
      if (group.getRank() != absent) {
        try {
          group.reconfigure(options_of(1, handles, short_timeout));
          ADD_FAILURE() << "nothing was thrown";
        } catch (const TimeoutError& late) {
          EXPECT_EQ(late.ranks(), std::vector<int>{absent}) << late.what();
        }
      }
      out_of_band.wait_for_all(group, "all have tried");
      EXPECT_EQ(sum_over(group), 6.0);  // the old group
    });
  }
}

}  // namespace
}  // namespace tutti::test::reconfigure_test

#endif
