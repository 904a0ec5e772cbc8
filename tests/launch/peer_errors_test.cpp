// The launcher finds the failed ranks in the text of every PeerError of the library that names one.
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/describe.h"
#include "launch/first_failure.h"

namespace tutti::peer_errors_test {
namespace {

using Ranks = std::vector<int>;

struct Example {
  std::string listed;  ///< the row of docs/error_messages.md; empty: the sources build the text elsewhere
  std::string line;    ///< what a rank prints
  Ranks ranks;         ///< the failed ranks that it names
};

const std::vector<Example>& examples() {
  static const std::vector<Example> all{
      {"...: ...the coordinator is lost", "barrier: the coordinator is lost", {}},
      {"...: on rank ... a connection to ... cannot be made: ...",
       "send to rank 1: on rank 2 a connection to rank 1 cannot be made: opening a socket: Too many open files",
       {2}},
      {"...: Rank ... successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
       "...: ... reports that other ranks did not enter the barrier within ....",
       "monitored_barrier: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for "
       "send/recv from rank 0: rank 0 reports that other ranks did not enter the barrier within 2 s.",
       {}},
      {"Connecting over ... failed on rank ..., .... The backend staged does without it....",
       "Connecting over nccl failed on rank 2, no device. The backend staged does without it.",
       {2}},
      {"Connecting over MPI failed: ...", "Connecting over MPI failed: MPI_ERR_OTHER", {}},
      {"Connecting over ...: ...: ....", "Connecting over encrypted tcp: rank 2: connection closed.", {2}},
      {"Connecting: on rank ...: ...", "Connecting: on rank 2: listening on 10.0.0.1 failed: no free port", {2}},
      {"rank ... announced a message of ... bytes, more than memory can hold. Nothing was exchanged....",
       "rank 2 announced a message of 9 bytes, more than memory can hold. Nothing was exchanged.",
       {2}},
      {"rank ... could not use the store that the ranks share: ...",  // the calling rank
       "rank 2 could not use the store that the ranks share: no key",
       {}},
      {"subgroup '...': could not connect to ... (...)...",
       "subgroup 'even': could not connect to rank 2 (refused)",
       {2}},
      {"This communicator has failed and cannot be used any more: ...",
       "This communicator has failed and cannot be used any more: barrier (operation 3): rank 2 exited",
       {2}},
      {"Unexpected data at the coordinator: another program uses the same one.",
       "Unexpected data at the coordinator: another program uses the same one.",
       {}},
      {"Unexpected data from other ranks: they run another version of tutti, or another program uses the same "
       "coordinator.",
       "Unexpected data from other ranks: they run another version of tutti.",
       {}},
      {"Unexpected data in the store: another program uses the same store....",
       "Unexpected data in the store: another program uses the same store.",
       {}},
      {"... could not read its next batch, batch ... of this loop...",
       "rank 2 could not read its next batch, batch 2 of this loop",
       {2}},
      {"the sampler of rank ... failed", "the sampler of rank 2 failed", {2}},
      {"rank ... sent an invalid sparse gradient: ...", "rank 2 sent an invalid sparse gradient: row 9 of 4", {2}},
      {"SyncBatchNorm: the input was rejected on ranks ..., see their errors for the reason...",
       "SyncBatchNorm: the input was rejected on ranks 1, 2, see their errors for the reason",
       {1, 2}},
      {"...rank ... could not connect: ...", "reconfigure: rank 2 could not connect: refused", {}},  // the calling rank
      {"...: ... failed inside the scope, so its work is not done...",
       "main_process_first: rank 2 failed inside the scope, so its work is not done",
       {2}},
      {"find_executable_batch_size with ...: ...", "find_executable_batch_size with 8: rank 2: no such file", {2}},
      {"rank ... failed to make its data loader: ...", "rank 2 failed to make its data loader: no such file", {2}},
      {"", "rank 2 could not read the stream: part_7.bin: truncated", {2}},  // a DataError
      {"... failed or left while the ranks connected...", "rank 2 failed or left while the ranks connected", {2}},
      {"", "model: rank 2 aborted this step: an exception ended its window", {2}},
      {"", "receive from rank 1: rank 2 has left the group", {2}},
      {"", "receive: rank 2 stopped sending the message at its deadline", {2}},
      {"", "receive: no message from rank 2 within 2 s", {2}},
      {"", "send: rank 2 did not accept the message within 2 s", {2}},
      {"", "  what():  rank 2: cannot write model.safetensors: No space left on device", {2}},
      {"", "all_reduce (operation 1) of the group of ranks 1, 2: rank 2 exited; rank 1 was waiting", {2}},
      {"", "receive (tag 0) of the group of ranks 1, 2: no message from rank 2 within 2 s", {2}},
  };
  return all;
}

TEST(PeerErrors, NameTheFailedRanks) {
  for (const Example& example : examples()) {
    EXPECT_EQ(named_failure_in(example.line).ranks, example.ranks) << example.line;
  }
}

TEST(PeerErrors, NameManyRanksAsARange) {
  Ranks ranks(10);
  std::iota(ranks.begin(), ranks.end(), 3);
  ranks.push_back(20);
  const std::string line = "barrier: " + describe_ranks(ranks) + " exited";
  EXPECT_EQ(named_failure_in(line).ranks, ranks) << line;
  EXPECT_EQ(named_failure_in("ranks 0 to 2000000000 exited").ranks, Ranks{});
}

TEST(PeerErrors, OfTheListHaveAnExampleEach) {
  constexpr std::string_view begin = "| PeerError | ";
  std::set<std::string> listed;
  std::ifstream page(ERROR_MESSAGES);
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with(begin)) listed.insert(line.substr(begin.size(), line.size() - begin.size() - 2));
  }
  std::set<std::string> shown;
  for (const Example& example : examples()) {
    if (!example.listed.empty()) shown.insert(example.listed);
  }
  EXPECT_EQ(shown, listed) << "add an example here, and its words to src/launch/first_failure.cpp";
}

}  // namespace
}  // namespace tutti::peer_errors_test
