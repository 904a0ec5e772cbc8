// Ranks: none.
#include <gtest/gtest.h>

#include "train/rank_device.h"
#include "tutti/train/accelerator.h"

namespace tutti::rank_device_test {
namespace {

const VariableLookup nothing_set = [](const std::string&) { return std::nullopt; };

TEST(RankDevice, IsTheOneOfTheLocalRankUnlessItHasANumber) {
  EXPECT_EQ(device_of_rank(at::kCUDA, 2), at::Device(at::kCUDA, 2));
  EXPECT_EQ(device_of_rank({at::kCUDA, 1}, 2), at::Device(at::kCUDA, 1));
  EXPECT_EQ(device_of_rank(at::kCPU, 2), at::Device(at::kCPU));
}

TEST(RankDevice, OfCudaSelectsABackendForItIfNoneIsGiven) {
  const auto backend = [](std::optional<at::Device> device, const std::string& asked, const VariableLookup& lookup) {
    return communication_for(device, {.backend = asked}, lookup).backend;
  };
  EXPECT_EQ(backend(at::kCUDA, "auto", nothing_set), "nccl");
  EXPECT_EQ(backend(at::kCUDA, "gloo", nothing_set), "gloo");
  EXPECT_EQ(backend(at::kCPU, "auto", nothing_set), "auto");
  EXPECT_EQ(backend(std::nullopt, "auto", nothing_set), "auto");
  const auto set = [](const std::string& name) {
    return name == "TUTTI_BACKEND" ? std::optional("gloo") : std::nullopt;
  };
  EXPECT_EQ(backend(at::kCUDA, "auto", set), "auto") << "the variable decides in connect()";
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
