// Ranks: 4 as processes. A rank of three is killed, the others go on as a group of two, and a new process joins them.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tutti/core/error.h"
#include "tutti/process_group/process_group_tutti.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace tutti::test::replaced_ranks_test {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Tensors = std::vector<at::Tensor>;

constexpr int joiner = 3;

std::string variable(const char* name) {
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
}

void expect_sum(ProcessGroupTutti& group) {
  for (const std::int64_t elements : {3, 200'000}) {
    Tensors tensors{at::full({elements}, group.getRank() + 1.0)};
    group.allreduce(tensors, {})->wait();
    EXPECT_EQ(tensors[0][elements - 1].item<double>(), group.getSize() * (group.getSize() + 1) / 2.0);
  }
}

/// Exchanges the handles of `processes` through files.
std::vector<std::string> exchange(const ProcessGroupTutti& group, c10d::Store& files, const std::string& name, int self,
                                  const std::vector<int>& processes) {
  files.set(name + std::to_string(self), group.get_reconfigure_handle());
  std::vector<std::string> handles;
  for (const int process : processes) handles.push_back(files.get_to_str(name + std::to_string(process)));
  return handles;
}

const RankProgram one_is_replaced("one_is_replaced", [] {
  const int self = read_environment().rank;
  const int killed = std::stoi(variable("KILLED"));
  const StorePtr files = c10::make_intrusive<c10d::FileStore>(variable("STORE_FILE"), -1);
  const auto options = c10::make_intrusive<ProcessGroupTutti::Options>(std::chrono::seconds(60), variable("BACKEND"));
  options->enable_reconfigure = self == joiner;
  StorePtr store = c10::make_intrusive<c10d::HashStore>();
  if (self != joiner) store = c10::make_intrusive<c10d::PrefixStore>("job", files);
  ProcessGroupTutti group(store, self == joiner ? 0 : self, self == joiner ? 1 : 3, options);
  std::vector<int> survivors{0, 1, 2};
  std::erase(survivors, killed);

  c10d::ReconfigureOptions shrunk;
  shrunk.uuid = 11;
  if (self != joiner) {
    expect_sum(group);
    if (self == killed) std::raise(SIGKILL);
    try {
      for (;;) expect_sum(group);
    } catch (const PeerError& lost) {
      EXPECT_EQ(lost.ranks(), std::vector<int>{killed}) << lost.what();
    }
    shrunk.handles = exchange(group, *files, "two", self, survivors);
    group.reconfigure(shrunk)->wait();
    EXPECT_EQ(group.getSize(), 2);
    EXPECT_EQ(group.getRank(), self == survivors[0] ? 0 : 1);
    expect_sum(group);
  }

  auto all = survivors;
  all.push_back(joiner);
  const auto handles = exchange(group, *files, "three", self, all);
  c10d::ReconfigureOptions grown;
  grown.uuid = 12;
  grown.handles = std::unordered_set<std::string>(handles.begin(), handles.end());
  group.reconfigure(grown)->wait();
  EXPECT_EQ(group.getSize(), 3);
  EXPECT_EQ(all.at(static_cast<std::size_t>(group.getRank())), self);
  expect_sum(group);
  Tensors message{at::full({5}, 7.0)};
  if (group.getRank() == 0) group.send(message, 2, 1)->wait();
  if (group.getRank() == 2) {
    Tensors received{at::full({5}, 0.0)};
    group.recv(received, 0, 1)->wait();
    EXPECT_TRUE(received[0].equal(message[0]));
  }
  group.barrier({})->wait();
});

// The last killed rank is the one that runs the coordinator.
TEST(Reconfigure, GoesOnWithoutAKilledRankAndWithItsReplacement) {
  for (const char* backend : {"auto", "tcp"}) {
    for (const int killed : {2, 0}) {
      const TemporaryFolder folder;
      const auto results = run_processes(one_is_replaced, 4,
                                         {.variables = {{"STORE_FILE", (folder.path() / "store").string()},
                                                        {"BACKEND", backend},
                                                        {"KILLED", std::to_string(killed)}}});
      for (int rank = 0; rank < 4; ++rank) {
        const auto& result = results[static_cast<std::size_t>(rank)];
        if (rank == killed) {
          EXPECT_EQ(result.signal, SIGKILL) << result.output;
        } else {
          EXPECT_EQ(result.exit_code, 0) << backend << ", rank " << rank << ": " << result.output;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tutti::test::replaced_ranks_test

#endif
