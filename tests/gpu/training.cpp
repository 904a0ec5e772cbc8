#include "gpu/training.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "support/temporary_folder.h"
#include "tutti/core/environment.h"

namespace tutti::test::gpu {
namespace {

/// Names the file of NCCL's store.
constexpr const char* store_variable = "TUTTI_TEST_STORE";

}  // namespace

void expect_same_as_on_cpu(const Train& train) {
  CommunicatorOptions options = communication_on_one_device();
  options.device = device();
  const auto communicator = Communicator::connect(read_environment(), options);
  if (communicator.rank() == 0) std::cout << "backend " << communicator.backend_name() << std::endl;
  const auto on_device = train(communicator, device());
  const auto on_cpu = train(communicator.duplicate("cpu"), at::kCPU);
  EXPECT_TRUE(close(on_device, on_cpu, tolerance)) << "rank " << communicator.rank();
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
