#include "gpu/training.h"

#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>

#include "support/temporary_folder.h"
#include "tutti/core/environment.h"

namespace tutti::test::gpu {
namespace {

/// Names the file of NCCL's store.
constexpr const char* store_variable = "TUTTI_TEST_STORE";

}  // namespace

void run_staged_threads(const std::function<void(const Communicator&)>& body) {
  const at::Device on = device();
  run_thread_ranks(2,
                   [&](const Communicator& communicator) {
                     const c10::DeviceGuard guard(on);
                     body(communicator);
                   },
                   {.backend = "staged", .timeout = std::chrono::seconds(30)});
}

void expect_same_as_on_cpu(const std::function<std::vector<at::Tensor>(const Communicator&, at::Device)>& body) {
  std::array<std::vector<at::Tensor>, 2> expected, actual;
  run_thread_ranks(2, [&](const Communicator& communicator) {
    expected.at(static_cast<std::size_t>(communicator.rank())) = body(communicator, at::kCPU);
  });
  run_staged_threads([&](const Communicator& communicator) {
    actual.at(static_cast<std::size_t>(communicator.rank())) = body(communicator, device());
  });
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    EXPECT_TRUE(close(actual.at(rank), expected.at(rank), tolerance)) << "rank " << rank;
  }
}

std::vector<RankResult> run_on_one_device(const RankProgram& program) {
  const TemporaryFolder folder;
  // A rank that creates a CUDA context or an NCCL communicator makes no progress for some seconds.
  return run_processes(
      program, 2,
      {.variables = {{store_variable, (folder.path() / "store").string()}, {"TUTTI_DEADLOCK_TIMEOUT", "15"}}});
}

CommunicatorOptions communication_on_one_device() {
  CommunicatorOptions options{.timeout = std::chrono::seconds(20)};
  if (std::getenv("TUTTI_TEST_NCCL") == nullptr) {
    options.backend = "staged";
    return options;
  }
  if (std::getenv("TUTTI_TEST_HOSTID_PER_RANK") != nullptr) {
    const std::string host = "host-of-rank-" + std::to_string(read_environment().rank);
    ::setenv("NCCL_HOSTID", host.c_str(), /*overwrite=*/1);
  }
  options.device_backend = nccl_on_one_device(std::getenv(store_variable));
  return options;
}

}  // namespace tutti::test::gpu
