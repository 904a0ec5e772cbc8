// Ranks that exit or stop in save_state() and load_state(), ranks that stop for a while in training, and files that
// only one rank cannot read: 2 and 3 processes. An error of an earlier save: 2 ranks as threads.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <utility>

#include "support/process_case.h"
#include "support/ranks.h"
#include "train/training_run.h"
#include "tutti/core/error.h"

namespace tutti::test::failed_ranks_test {
namespace {

constexpr const char* folder_variable = "TUTTI_TEST_FOLDER";
constexpr const char* signal_variable = "TUTTI_TEST_SIGNAL";

/// Raises a signal when it is saved or loaded.
struct SignalRaiser final : Stateful {
  int in_save = 0;
  int in_load = 0;  ///< raised once only, because the previous state is restored by loading too
  StateDict state_dict() const override {
    if (in_save != 0) std::raise(in_save);
    return {};
  }
  void load_state_dict(const StateDict&) override {
    if (const int signal = std::exchange(in_load, 0); signal != 0) std::raise(signal);
  }
};

/// Prints how `action` ends, for the tests below.
template <typename Action>
void report(const std::string& what, const Action& action) {
  try {
    action();
    std::cout << what << ": done" << std::endl;
  } catch (const TimeoutError& error) {
    std::cout << what << ": TimeoutError: " << error.what() << std::endl;
  } catch (const PeerError& error) {
    std::cout << what << ": PeerError: " << error.what() << std::endl;
  } catch (const CheckpointError& error) {
    std::cout << what << ": CheckpointError: " << error.what() << std::endl;
  }
}

void run_failing(bool in_load) {
  const std::filesystem::path folder = std::getenv(folder_variable);
  const int signal = std::atoi(std::getenv(signal_variable));
  Accelerator accelerator({.communication = {.timeout = std::chrono::seconds(10)}});
  Mlp net;
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  SignalRaiser mine;
  accelerator.register_for_checkpointing("mine", mine);
  accelerator.save_state({.folder = folder / "first"});
  const bool failing = accelerator.rank() == 1;
  if (in_load) {
    fill(*net, 7);
    const std::string before = bytes_of(*net);
    mine.in_load = failing ? signal : 0;
    report("load", [&] { accelerator.load_state(folder / "first"); });
    EXPECT_TRUE(bytes_of(*net) == before) << "something was loaded";
  } else {
    mine.in_save = failing ? signal : 0;
    report("save", [&] { accelerator.save_state({.folder = folder / "second"}); });
  }
}
const RankProgram failing_in_save("failing_in_save", [] { run_failing(false); });
const RankProgram failing_in_load("failing_in_load", [] { run_failing(true); });

class FailedRank : public testing::TestWithParam<bool> {  // true: the rank fails in load_state()
 protected:
  const RankProgram& program() const { return GetParam() ? failing_in_load : failing_in_save; }
  std::string what() const { return GetParam() ? "load: " : "save: "; }
  ProcessOptions options(int signal) const {
    return {.variables = {{folder_variable, folder_.path().string()}, {signal_variable, std::to_string(signal)}}};
  }
  void expect_only_the_first() const {
    EXPECT_NO_THROW(read_checkpoint(folder_.path() / "first"));
    EXPECT_FALSE(std::filesystem::exists(folder_.path() / "second"));
  }

  TemporaryFolder folder_;
};

TEST_P(FailedRank, ARankThatExitsIsNamed) {
  const auto results = run_processes(program(), 3, options(SIGKILL));
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    EXPECT_NE(results[rank].output.find(what() + "PeerError: "), std::string::npos) << results[rank].output;
    EXPECT_NE(results[rank].output.find("rank 1"), std::string::npos) << results[rank].output;
  }
  expect_only_the_first();
}

// The stopped rank continues after its peers have timed out. The stopped rank must not save or load anything.
TEST_P(FailedRank, AStoppedRankIsNamedAndGetsAnErrorWhenItContinues) {
  RankProcesses ranks(program(), 3, options(SIGSTOP));
  for (const int rank : {0, 2}) ASSERT_TRUE(ranks.wait_for_output(rank, what() + "TimeoutError: "));
  ranks.send_signal(1, SIGCONT);
  const auto results = ranks.wait();
  expect_success(results);
  for (const int rank : {0, 2}) {
    EXPECT_NE(results[rank].output.find("rank 1 has been stopped for"), std::string::npos) << results[rank].output;
  }
  EXPECT_NE(results[1].output.find("timed out waiting for this rank (1)"), std::string::npos) << results[1].output;
  expect_only_the_first();
}

INSTANTIATE_TEST_SUITE_P(SaveAndLoad, FailedRank, testing::Values(false, true));

const RankProgram rests("stops_for_a_while", [] {
  Accelerator accelerator;
  Mlp reference, net;
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const int ranks = accelerator.num_processes();
  for (int step = 0; step < 6; ++step) {
    if (step == 3 && accelerator.rank() == 1) std::raise(SIGSTOP);
    const Batch batch = batch_of(step * ranks + accelerator.rank());
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      const Batch other = batch_of(step * ranks + rank);
      (loss_of(reference->forward(other.input), other.target) / ranks).backward();
    }
    reference_optimizer.step();
    reference_optimizer.zero_grad();
    if (step == 2) std::cout << "half" << std::endl;
  }
  EXPECT_TRUE(close(net->parameters(), reference->parameters()));
});
TEST(FailedRank, ABrieflyStoppedRankChangesNothing) {
  RankProcesses ranks(rests, 3, {.variables = {{"TUTTI_HEARTBEAT_TIMEOUT", "3600"}}});
  ranks.wait_until_stopped(1);
  for (const int rank : {0, 2}) ASSERT_TRUE(ranks.wait_for_output(rank, "half"));
  ranks.send_signal(1, SIGCONT);
  expect_success(ranks.wait());
}

/// Changes a process of root to an unprivileged user until destruction, so that permissions apply.
class WithoutPrivileges {
 public:
  WithoutPrivileges() {
    if (was_root_ && ::seteuid(unprivileged) != 0) throw std::runtime_error("seteuid");
  }
  ~WithoutPrivileges() {
    if (was_root_ && ::seteuid(0) != 0) std::abort();
  }
  WithoutPrivileges(const WithoutPrivileges&) = delete;
  WithoutPrivileges& operator=(const WithoutPrivileges&) = delete;

 private:
  static constexpr uid_t unprivileged = 65534;
  bool was_root_ = ::geteuid() == 0;
};

struct Trained {
  explicit Trained(const Communicator& communicator, const std::filesystem::path& project_dir = {})
      : accelerator({.project = {.project_dir = project_dir}, .communicator = communicator}) {
    accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  }
  Mlp net;
  Accelerator accelerator;
};

/// Expects a CheckpointError with `part` on all ranks, and that the state is unchanged.
template <typename Action>
void expect_refused(Trained& of, const std::string& part, const Action& action) {
  const std::string before = bytes_of(*of.net);
  try {
    action();
    ADD_FAILURE() << "nothing was thrown; expected " << part;
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " is not in " << error.what();
  }
  EXPECT_TRUE(bytes_of(*of.net) == before);
  of.accelerator.wait_for_everyone();
}

// A file that only one rank reads.
const ProcessCase one_bad_file("failed ranks: one bad file", [](const Communicator& communicator,
                                                                const std::filesystem::path& folder) {
  Trained run(communicator);
  run.accelerator.save_state({.folder = folder / "saved"});
  const std::string saved = bytes_of(*run.net);
  fill(*run.net, 7);
  const auto load = [&] { run.accelerator.load_state(folder / "saved"); };
  const auto file = folder / "saved" / "rank_1.safetensors";
  const std::string content = content_of(file);
  const auto put = [&](const std::string& what) {
    run.accelerator.wait_for_everyone();
    if (communicator.rank() == 0) std::ofstream(file, std::ios::binary) << what;
    run.accelerator.wait_for_everyone();
  };
  std::string flipped = content;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  for (const std::string& bad : {flipped, content.substr(0, content.size() / 2), std::string()}) {
    put(bad);
    expect_refused(run, "rank 1: ", load);
    expect_refused(run, "rank_1.safetensors", load);
  }
  put(content);
  load();
  EXPECT_TRUE(bytes_of(*run.net) == saved);
});

const ProcessCase no_permission("failed ranks: no permission", [](const Communicator& communicator,
                                                                  const std::filesystem::path& folder) {
  Trained run(communicator);
  const auto closed = folder / "closed";
  const auto file = folder / "saved" / "rank_1.safetensors";
  const bool first = communicator.rank() == 0;
  if (first) {
    ::chmod(folder.c_str(), 0755);
    std::filesystem::create_directory(closed);
    ::chmod(closed.c_str(), 0555);
  }
  run.accelerator.save_state({.folder = folder / "saved"});
  const std::string saved = bytes_of(*run.net);
  fill(*run.net, 7);
  if (first) ::chmod(file.c_str(), 0);
  run.accelerator.wait_for_everyone();
  {
    const WithoutPrivileges unprivileged;
    run.accelerator.wait_for_everyone();
    expect_refused(run, "Permission denied", [&] { run.accelerator.save_state({.folder = closed / "saved"}); });
    expect_refused(run, "rank 0: ", [&] { run.accelerator.save_state({.folder = closed / "saved"}); });
    // The other ranks may read their files.
    expect_refused(run, "rank 1: ", [&] { run.accelerator.load_state(folder / "saved"); });
    expect_refused(run, "Permission denied", [&] { run.accelerator.load_state(folder / "saved"); });
  }
  EXPECT_TRUE(std::filesystem::is_empty(closed));
  run.accelerator.wait_for_everyone();
  if (first) ::chmod(file.c_str(), 0644);
  run.accelerator.wait_for_everyone();
  run.accelerator.load_state(folder / "saved");
  EXPECT_TRUE(bytes_of(*run.net) == saved);
});

// A folder that may not be read is not a folder without checkpoints.
const ProcessCase closed_project("failed ranks: a project folder that may not be read",
                                 [](const Communicator& communicator, const std::filesystem::path& folder) {
                                   const auto project = folder / "project";
                                   Trained run(communicator, project);
                                   const bool first = communicator.rank() == 0;
                                   if (first) ::chmod(folder.c_str(), 0755);
                                   run.accelerator.save_state();
                                   const auto newest = run.accelerator.save_state();
                                   fill(*run.net, 7);
                                   const std::vector<std::pair<std::filesystem::path, mode_t>> closed = {
                                       {project, 0}, {project / "checkpoints", 0444}, {newest, 0}};
                                   for (const auto& [path, mode] : closed) {
                                     if (first) ::chmod(path.c_str(), mode);
                                     run.accelerator.wait_for_everyone();
                                     {
                                       const WithoutPrivileges unprivileged;
                                       run.accelerator.wait_for_everyone();
                                       expect_refused(run, "Permission denied",
                                                      [&] { run.accelerator.load_latest_state(); });
                                     }
                                     if (first) ::chmod(path.c_str(), 0755);
                                     run.accelerator.wait_for_everyone();
                                   }
                                   EXPECT_EQ(run.accelerator.load_latest_state()->folder.filename(), newest.filename());
                                 });

// One rank has taken the error of an asynchronous save.
const ProcessCase taken_error("failed ranks: an error that one rank has taken",
                              [](const Communicator& communicator, const std::filesystem::path& folder) {
                                Trained run(communicator, folder / "project");
                                const auto taken = run.accelerator.save_state();
                                const std::vector<std::function<void()>> calls = {
                                    [&] { run.accelerator.save_state({.folder = folder / "free"}); },
                                    [&] { run.accelerator.load_state(taken); },
                                    [&] { run.accelerator.load_latest_state(); }};
                                for (const auto& call : calls) {
                                  run.accelerator.save_state({.folder = taken, .asynchronous = true});
                                  if (communicator.rank() == 0) {
                                    EXPECT_THROW(run.accelerator.wait_for_checkpoint(), UsageError);
                                  }
                                  try {
                                    call();
                                    ADD_FAILURE() << "nothing was thrown";
                                  } catch (const UsageError& error) {
                                    EXPECT_NE(std::string(error.what()).find("already exists"), std::string::npos)
                                        << error.what();
                                  }
                                  EXPECT_FALSE(std::filesystem::exists(folder / "free"));
                                  run.accelerator.wait_for_everyone();
                                }
                                for (const auto& call : calls) EXPECT_NO_THROW(call());
                              });
TEST(FailedRank, AnErrorOfAnAsynchronousSaveThatOneRankHasTakenIsThrownOnAllRanks) {
  taken_error.on_threads({2});
}

const ProcessCase no_descriptors("failed ranks: no descriptors", [](const Communicator& communicator,
                                                                    const std::filesystem::path& folder) {
  Trained run(communicator);
  run.accelerator.save_state({.folder = folder / "saved"});
  fill(*run.net, 7);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  if (communicator.rank() == 1) {
    const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  for (const std::string part : {"rank 1: ", "Too many open files"}) {
    expect_refused(run, part, [&] { run.accelerator.save_state({.folder = folder / "again"}); });
    expect_refused(run, part, [&] { run.accelerator.load_state(folder / "saved"); });
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_FALSE(std::filesystem::exists(folder / "again"));
  run.accelerator.load_state(folder / "saved");
  run.accelerator.save_state({.folder = folder / "again"});
});

}  // namespace
}  // namespace tutti::test::failed_ranks_test
