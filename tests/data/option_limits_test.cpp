// Options of loaders that are too large: the error names the option and the limit. 1 process.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "data/numbers.h"
#include "data/streams.h"
#include "tutti/core/error.h"
#include "tutti/data/data_loader.h"
#include "tutti/data/samplers.h"
#include "tutti/data/stream_loader.h"

namespace tutti::test::option_limits_test {
namespace {

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
constexpr int most_int = std::numeric_limits<int>::max();

template <typename Call>
void expect_refused(const Call& call, const std::string& option, const std::string& limit) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown for " << option;
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(option), std::string::npos) << text;
    EXPECT_NE(text.find(limit), std::string::npos) << text;
  }
}

/// A dataset with a size that it does not have.
struct Claims {
  std::size_t count = 0;
  std::size_t size() const { return count; }
  std::vector<std::int64_t> get_batch(const std::vector<std::size_t>&) const { return {}; }
};

TEST(OptionLimits, OfLoadersOverDatasets) {
  for (const Sharding sharding : {Sharding::interleaved, Sharding::batches, Sharding::blocks_by_window}) {
    const auto make = [&](DataLoaderOptions options, std::int64_t accumulation_steps = 1) {
      options.sharding = sharding;
      DataLoader<Numbers> loader(Numbers{10}, options, 0, 2, accumulation_steps);
    };
    expect_refused([&] { make({.batch_size = most}); }, "batch_size is " + std::to_string(most), "2147483647");
    expect_refused([&] { make({.batch_size = most - 1, .split_batches = true}); },
                   "batch_size is " + std::to_string(most - 1), "4294967294");
    expect_refused([&] { make({.num_workers = most_int}); }, "num_workers is 2147483647", "1024");
    expect_refused([&] { make({.prefetch_factor = most_int}); }, "prefetch_factor is 2147483647", "16384");
    expect_refused([&] { make({}, most); }, "accumulation_steps is " + std::to_string(most), "2147483647");
  }
  DataLoader<Numbers> large(Numbers{10}, {.batch_size = 2'147'483'647});
  EXPECT_EQ(large.size(), 1);
}

TEST(OptionLimits, OfStreams) {
  const LoaderGroup two{.rank = 0, .world_size = 2};
  expect_refused([&] { (void)checked_batch_size({.batch_size = most}, two); }, "batch_size", "2147483647");
  expect_refused([&] { (void)checked_batch_size({.prefetch_factor = most_int}, two); }, "prefetch_factor", "16384");
}

TEST(OptionLimits, OfPositionsInTheData) {
  DataLoader<Numbers> loader(Numbers{10}, {.batch_size = 2});
  expect_refused([&] { loader.set_epoch(most); }, "set_epoch", std::to_string(std::int64_t{1} << 62));
  StreamCursor stream(StreamSharding::slices, 2, 4);
  expect_refused([&] { stream.skip(most); }, "skip_first_batches", std::to_string(std::int64_t{1} << 40));
}

TEST(OptionLimits, OfSamplersAndSizes) {
  expect_refused([] { WeightedRandomSampler({1, 2}, most); }, "num_samples", "2147483647");
  expect_refused([] { DataLoader<Claims>(Claims{.count = std::numeric_limits<std::size_t>::max()}, {}); },
                 "size() returned 18446744073709551615", std::to_string(std::int64_t{1} << 62));
}

// The position is known in batches of the sharding that continues it.
TEST(OptionLimits, APositionCountsInBatchesOfThePresentSharding) {
  EpochCursor two({.dataset_size = 120, .rank = 0, .world_size = 2, .batch_size = 6});
  two.skip(5);
  EXPECT_EQ(two.batches_of_this_sharding(), 5);
  EpochCursor three({.dataset_size = 120, .rank = 0, .world_size = 3, .batch_size = 4});
  three.load_state_dict(two.state_dict());
  EXPECT_EQ(three.batch_index(), 5);
  EXPECT_EQ(three.batches_of_this_sharding(), 5);
  EpochCursor one({.dataset_size = 120, .rank = 0, .world_size = 1, .batch_size = 6});
  one.load_state_dict(two.state_dict());
  EXPECT_EQ(one.batches_of_this_sharding(), 10);
}

}  // namespace
}  // namespace tutti::test::option_limits_test
