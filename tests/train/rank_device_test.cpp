// Ranks: none.
#include <gtest/gtest.h>

#include "device/devices.h"
#include "train/rank_device.h"
#include "tutti/train/accelerator.h"

namespace tutti::rank_device_test {
namespace {

const VariableLookup nothing_set = [](const std::string&) { return std::nullopt; };

TEST(RankDevice, IsTheOneOfTheLocalRankUnlessItHasANumber) {
  EXPECT_EQ(devices::device_of_rank(at::kCUDA, 2, 4), at::Device(at::kCUDA, 2));
  EXPECT_EQ(devices::device_of_rank(at::kCUDA, 2, 1), at::Device(at::kCUDA, 0)) << "each rank sees only its own device";
  EXPECT_EQ(devices::device_of_rank(at::kCUDA, 5, 2), at::Device(at::kCUDA, 1)) << "ranks share devices";
  EXPECT_EQ(devices::device_of_rank(at::kXPU, 1, 2), at::Device(at::kXPU, 1));
  EXPECT_EQ(devices::device_of_rank({at::kCUDA, 1}, 2, 4), at::Device(at::kCUDA, 1));
  EXPECT_EQ(devices::device_of_rank(at::kCPU, 2), at::Device(at::kCPU));
  EXPECT_EQ(devices::device_of_rank(at::kMeta, 2), at::Device(at::kMeta));
}

TEST(RankDevice, IsPassedToTheCommunicator) {
  const auto options = communication_for(at::kCUDA, false, {}, nothing_set);
  EXPECT_EQ(options.device, at::Device(at::kCUDA));
  EXPECT_EQ(options.backend, "auto") << "connect() chooses, when it knows the devices of all ranks";
  const auto given = communication_for(at::kCUDA, false, {.device = at::Device(at::kCUDA, 3)}, nothing_set);
  EXPECT_EQ(given.device, at::Device(at::kCUDA, 3));
}

TEST(RankDevice, OfReproducibleTrainingIsStaged) {
  const auto backend = [](std::optional<at::Device> device, const CommunicatorOptions& asked,
                          const VariableLookup& lookup) {
    return communication_for(device, true, asked, lookup).backend;
  };
  EXPECT_EQ(backend(at::kCUDA, {}, nothing_set), "staged");
  EXPECT_EQ(backend(at::kCPU, {}, nothing_set), "auto");
  EXPECT_EQ(backend(std::nullopt, {}, nothing_set), "auto");
  EXPECT_EQ(backend(at::kCUDA, {.backend = "nccl"}, nothing_set), "nccl");
  const auto set = [](const std::string& name) {
    return name == "TUTTI_BACKEND" ? std::optional("nccl") : std::nullopt;
  };
  EXPECT_EQ(backend(at::kCUDA, {}, set), "auto") << "the variable decides in connect()";
}

TEST(RankDevice, IsReportedByTheAccelerator) {
  const Accelerator accelerator({.communicator = Communicator()});
  EXPECT_EQ(accelerator.device(), at::Device(at::kCPU));
  const Accelerator on_meta({.device = at::kMeta, .communicator = Communicator()});
  EXPECT_EQ(on_meta.device(), at::Device(at::kMeta));
}

TEST(RankDevice, ThatIsNotThereIsAnError) {
  if (at::hasCUDA()) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_THROW(Accelerator({.device = at::kCUDA, .communicator = Communicator()}), UsageError);
}

}  // namespace
}  // namespace tutti::rank_device_test
