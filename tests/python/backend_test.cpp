// torch_tutti: the backend and DistributedDataParallel, in Python programs of 2 and 3 ranks.
#include <cstdlib>

#include "examples/programs.h"
#include "python/scripts.h"
#include "support/temporary_folder.h"

namespace tutti::test::python_backend_test {
namespace {

class TorchTutti : public WithPyTorch {
 protected:
  void SetUp() override {
    WithPyTorch::SetUp();
    if (!IsSkipped() && !BUILDS_TORCH_TUTTI) GTEST_SKIP() << "torch_tutti was not built: CMake says why";
  }
};

TEST_F(TorchTutti, CollectivesEqualThoseOfGloo) {
  for (const int ranks : {2, 3}) expect_success("collectives.py", ranks);
}

TEST_F(TorchTutti, SupportsPyTorchsLibrariesOverBackends) {
  for (const int ranks : {2, 3}) expect_success("torch_models.py", ranks);
}

TEST_F(TorchTutti, TrainsModelsAsOneProcess) {
  for (const int ranks : {2, 3}) expect_success("models.py", ranks);
  expect_success("by_hand.py", 2);
}

TEST_F(TorchTutti, RaisesOnAllRanksWhenOneFails) {
  // The killed rank fails the job.
  const auto killed = run_script(python_, "failures.py", 3, {"killed"}, {"--grace", "60"});
  EXPECT_EQ(killed.exit_code, 128 + 9) << killed.out << killed.err;
  EXPECT_EQ(lines_with(killed.out, "told"), 2) << killed.out << killed.err;
  expect_success("failures.py", 2, {"late"});
  expect_success("failures.py", 2, {"astray"});
  expect_success("failures.py", 2, {"asynchronous"});
}

TEST_F(TorchTutti, ReconfiguresTheGroupAfterARankWasKilled) {
  if (!TORCH_HAS_RECONFIGURE) GTEST_SKIP() << "PyTorch has it from 2.15 on";
  for (const char* killed : {"2", "0"}) {
    const TemporaryFolder folder;
    const auto done = run_script(python_, "reconfigured.py", 4, {folder.path(), killed}, {"--grace", "60"});
    EXPECT_EQ(done.exit_code, 128 + 9) << done.out << done.err;
    EXPECT_EQ(lines_with(done.out, "trained"), 3) << done.out << done.err;
  }
}

// Ranks 0 and 1 are on one node, rank 2 and process 3 on another.
TEST_F(TorchTutti, ReconfiguresTheGroupOverTwoNodes) {
  if (!TORCH_HAS_RECONFIGURE) GTEST_SKIP() << "PyTorch has it from 2.15 on";
  for (const char* killed : {"2", "0"}) {
    const TemporaryFolder folder;
    const auto done =
        run("GRACE=60 PYTHONPATH=" PYTHON_PACKAGES " OMP_NUM_THREADS=1 TUTTI_HEARTBEAT_TIMEOUT=2 " NODES_SCRIPT
            " 2 1gbit 2 " TUTTI_COMMAND " " +
            python_ + " -u " PYTHON_SCRIPTS "/reconfigured.py " + folder.path().string() + " " + killed + " 2>&1");
    if (done.exit_code == nodes_impossible) GTEST_SKIP() << done.output;
    EXPECT_EQ(done.exit_code, 128 + 9) << done.output;
    EXPECT_EQ(lines_with(done.output, "trained"), 3) << done.output;
  }
}

TEST_F(TorchTutti, ShutsDownCleanly) {
  for (const char* how : {"destroyed", "left", "forked", "again", "waited"}) {
    const TemporaryFolder folder;
    const auto done = run_script(python_, "shutdown.py", 2, {how, folder.path()});
    EXPECT_EQ(done.exit_code, 0) << how << ": " << done.out << done.err;
    EXPECT_EQ(lines_with(done.out, "left"), 2) << how << ": " << done.out << done.err;
  }
}

TEST_F(TorchTutti, RunsTheProgramOfTheGuide) {
  // Steps of 3 epochs, and 7 exchanges before the number of passes in a step is known. With 3 ranks the last step of an
  // epoch has two passes.
  for (const auto& [ranks, last] : {std::pair(2, ", 103 exchanges so far"), std::pair(3, ", 73 exchanges so far")}) {
    const auto done = run_script(python_, std::string(PYTHON_EXAMPLES) + "/train.py", ranks);
    EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
    EXPECT_EQ(lines_with(done.out, "exchanges so far"), 3) << done.out;
    EXPECT_EQ(lines_with(done.out, last), 1) << done.out;
  }
}

TEST_F(TorchTutti, RefusesAnotherTorch) {
  expect_success("versions.py", 1);
}

/// Tests that also need Accelerate.
class Accelerated : public TorchTutti {
 protected:
  void SetUp() override {
    TorchTutti::SetUp();
    const char* peers = std::getenv("TUTTI_PEERS_PYTHON");  // NOLINT(concurrency-mt-unsafe)
    if (peers == nullptr) GTEST_SKIP() << "set TUTTI_PEERS_PYTHON: ./dev peers makes one";
    python_ = peers;
  }
};

TEST_F(Accelerated, LoopsOfItsDocumentsRunOverBothModels) {
  expect_success("accelerated.py", 2, {"ours"});
  expect_success("accelerated.py", 2);
}

}  // namespace
}  // namespace tutti::test::python_backend_test
