#include "launch/count_gpus.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.h"

namespace tutti::test::count_gpus_test {
namespace {

TEST(CountGpus, CountsDeviceFilesThatCudaMaySee) {
  const TemporaryFolder dev;
  EXPECT_EQ(count_gpus(dev.path(), std::nullopt), 0);
  EXPECT_EQ(count_gpus(dev.path(), "0"), 0);
  EXPECT_EQ(count_gpus(dev.path() / "none", std::nullopt), 0);
  for (const auto* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"}) {
    std::ofstream(dev.path() / name) << ' ';
  }
  EXPECT_EQ(count_gpus(dev.path(), std::nullopt), 3);
  EXPECT_EQ(count_gpus(dev.path(), "0,2"), 2);
  EXPECT_EQ(count_gpus(dev.path(), "2"), 1);
  EXPECT_EQ(count_gpus(dev.path(), "GPU-8932f937,MIG-5c89"), 2);
  EXPECT_EQ(count_gpus(dev.path(), ""), 0);
  EXPECT_EQ(count_gpus(dev.path(), "-1"), 0);
  EXPECT_EQ(count_gpus(dev.path(), "1,3,0"), 1);  // CUDA stops at the first that there is not
}

}  // namespace
}  // namespace tutti::test::count_gpus_test
