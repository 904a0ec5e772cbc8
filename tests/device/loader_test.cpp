// Ranks: none. Loaders that move batches to the simulated device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "support/simulated_device/simulated_device.h"
#include "tutti/core/error.h"
#include "tutti/data/data_loader.h"
#include "tutti/data/stream_loader.h"

namespace tutti::test::device_loader_test {
namespace {

const at::Device device(simulated::type, 1);

/// Sample i is a row of i. Notes which device was current on the thread that read.
struct Rows {
  std::size_t size() const { return 40; }
  torch::data::Example<> get_batch(const std::vector<std::size_t>& indices) const {
    read_on = simulated::current_device();
    std::vector<at::Tensor> rows;
    for (const std::size_t index : indices) rows.push_back(at::full({1, 300}, static_cast<double>(index), at::kFloat));
    return {at::cat(rows), at::ones({static_cast<std::int64_t>(indices.size())})};
  }
  static inline std::atomic<int> read_on = -1;
};

struct RowStream {
  void reset() { next = 0; }
  std::optional<torch::data::Example<>> get_batch(std::size_t size) {
    if (next >= 40) return std::nullopt;
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < size; ++i) indices.push_back(next++);
    return Rows().get_batch(indices);
  }
  std::size_t next = 0;
};

/// The sum of each batch, computed while later batches are copied.
template <typename Loader>
std::vector<double> sums_of(Loader& loader) {
  std::vector<at::Tensor> sums;
  for (const auto& batch : loader) {
    EXPECT_EQ(batch.data.device(), device);
    sums.push_back((batch.data.mean(1) * batch.target).sum());
  }
  std::vector<double> values;
  for (const at::Tensor& sum : sums) values.push_back(sum.item<double>());
  return values;
}

std::vector<double> expected_sums() {
  std::vector<double> sums;
  for (int first = 0; first < 40; first += 4) sums.push_back(4 * first + 6);
  return sums;
}

class DeviceLoader : public testing::Test {
 protected:
  void SetUp() override { simulated::set_current_device(device.index()); }
  void TearDown() override {
    simulated::settings().microseconds_per_kernel = 0;
    simulated::set_current_device(0);
  }
};

TEST_F(DeviceLoader, WaitsForNoBatch) {
  for (const int workers : {0, 2}) {
    SCOPED_TRACE(std::to_string(workers) + " workers");
    DataLoader<Rows> loader({}, {.batch_size = 4, .num_workers = workers, .device = device});
    simulated::reset_counts();
    int batches = 0;
    for (const auto& batch : loader) {
      EXPECT_EQ(batch.data.device(), device);
      ++batches;
    }
    EXPECT_EQ(batches, 10);
    EXPECT_EQ(simulated::counts().all_waits(), 0);
    EXPECT_EQ(simulated::counts().copies_to_device, 20);
    EXPECT_EQ(Rows::read_on, device.index()) << "workers read with the loop's current device";
  }
}

// With slow kernels, memory that is reused too early, and work that does not wait for its batch, give wrong sums.
TEST_F(DeviceLoader, WorkOnABatchSeesItsValues) {
  for (const int microseconds : {0, 2000}) {
    simulated::settings().microseconds_per_kernel = microseconds;
    for (const int workers : {0, 2}) {
      SCOPED_TRACE(std::to_string(workers) + " workers");
      DataLoader<Rows> loader({}, {.batch_size = 4, .num_workers = workers, .device = device});
      EXPECT_EQ(sums_of(loader), expected_sums());
    }
  }
}

TEST_F(DeviceLoader, StreamsAreMovedToo) {
  for (const int workers : {0, 1}) {
    StreamLoader<RowStream> loader({}, {.batch_size = 4, .num_workers = workers, .device = device});
    simulated::reset_counts();
    EXPECT_EQ(sums_of(loader), expected_sums());
    EXPECT_EQ(simulated::counts().all_waits(), 10) << "of the test, for its sums";
  }
}

TEST_F(DeviceLoader, BlockingCopiesWait) {
  DataLoader<Rows> loader({}, {.batch_size = 4, .device = device, .non_blocking = false});
  simulated::reset_counts();
  for (const auto& batch : loader) EXPECT_EQ(batch.data.device(), device);
  EXPECT_EQ(simulated::counts().all_waits(), 20);
}

TEST(DevicePlacement, PinsAheadAndCopiesBesideTheProgram) {
  const Placement place(at::Device(simulated::type, 0));
  const at::Tensor pinned = place.ahead()(at::ones({2}));
  EXPECT_TRUE(pinned.is_cpu() && pinned.is_pinned());
  EXPECT_TRUE(place(pinned).cpu().equal(at::ones({2})));
  const at::Tensor there = place(pinned);
  EXPECT_TRUE(place(there).is_same(there));
}

TEST(DevicePlacement, RefusesADeviceThatIsNotThere) {
  EXPECT_THROW(Placement{at::Device(simulated::type, 100)}, UsageError);
  EXPECT_THROW(Placement{at::Device(at::kCUDA, 0)}, UsageError);
}

}  // namespace
}  // namespace tutti::test::device_loader_test
