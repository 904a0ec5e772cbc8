// Ranks: 2 as threads, each with a simulated device. find_executable_batch_size on devices that run out of memory.
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include <atomic>

#include "support/simulated_device/ranks.h"
#include "tutti/train/find_executable_batch_size.h"

namespace tutti::test::device_batch_size_test {
namespace {

/// The device's allocator as one that keeps a cache; counts how often the cache is emptied. Storages refer to it, so it
/// is never destroyed.
class CachingAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override { return device_->allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return device_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { device_->copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override { ++emptied; }
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override {}

  std::atomic<int> emptied = 0;

 private:
  c10::Allocator* device_ = c10::GetAllocator(simulated::type);
};

TEST(DeviceBatchSize, IsHalvedUntilItFitsTheDevice) {
  static auto* const allocator = new CachingAllocator;
  c10::Allocator* const before = c10::GetAllocator(simulated::type);
  c10::SetAllocator(simulated::type, allocator);
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
    std::vector<std::int64_t> tried;
    const auto body = [&](std::int64_t size) {
      tried.push_back(size);
      // At most 4 samples fit on rank 0's device.
      const std::int64_t bytes = communicator.rank() == 0 && size > 4 ? std::int64_t{1} << 40 : size;
      const at::Tensor batch = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
    };
    EXPECT_EQ(find_executable_batch_size(communicator, body, {.starting_batch_size = 16}), 4);
    EXPECT_EQ(tried, (std::vector<std::int64_t>{16, 8, 4}));
  });
  c10::SetAllocator(simulated::type, before);
  EXPECT_EQ(allocator->emptied, 2 * 2) << "on both ranks before each further attempt";
}

}  // namespace
}  // namespace tutti::test::device_batch_size_test
