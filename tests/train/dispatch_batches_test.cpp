// Ranks: 1, 2 and 3, as threads and as processes. Streams that rank 0 reads for all ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/dispatch_batches.h"

namespace tutti::test::dispatch_batches_test {
namespace {

using Sample = torch::data::Example<>;

/// Numbers as Examples, `count` per epoch. Epoch e begins at 100 * e.
struct Numbers {
  std::int64_t count = 0;
  std::optional<std::int64_t> broken_at{};
  std::int64_t next = 0;
  std::int64_t epoch = 0;

  std::optional<std::vector<Sample>> get_batch(std::size_t batch_size) {
    std::vector<Sample> batch;
    while (batch.size() < batch_size && next < count) {
      if (next == broken_at) throw std::runtime_error("the disk failed");
      const auto number = static_cast<double>(100 * epoch + next++);
      batch.emplace_back(at::full({2}, number), at::scalar_tensor(-number));
    }
    return batch.empty() ? std::nullopt : std::optional(batch);
  }
  void set_epoch(std::int64_t number) { epoch = number; }
  void reset() { next = 0; }
};

/// A stream that only rank 0 can read.
Numbers read_by_rank_0(const Communicator& communicator, Numbers numbers) {
  return communicator.rank() == 0 ? numbers : Numbers{};
}

// An empty epoch ends at once on all ranks. The next epoch may have batches.
const RankCase empty("dispatched_empty", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  auto loader =
      accelerator.data_loader(DispatchedStream(read_by_rank_0(communicator, {}), communicator), {.batch_size = 2});
  for (int epoch = 0; epoch < 2; ++epoch) {
    for ([[maybe_unused]] const auto& batch : loader) FAIL() << "a batch of nothing";
  }
});
TEST(DispatchedStream, AnEmptyStreamEndsAtOnce) {
  empty.on_threads({1, 2, 3});
}

const RankCase shards("dispatched_shards", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  const int ranks = communicator.size();
  auto loader = accelerator.data_loader(
      DispatchedStream(read_by_rank_0(communicator, {.count = 4 * ranks}), communicator), {.batch_size = 2});
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::int64_t expected = 100 * epoch + 2 * communicator.rank();
    int batches = 0;
    for (const std::vector<Sample>& batch : loader) {
      ASSERT_EQ(batch.size(), 2U);
      for (std::int64_t i = 0; i < 2; ++i) {
        const Sample& sample = batch[static_cast<std::size_t>(i)];
        EXPECT_TRUE(at::equal(sample.data, at::full({2}, static_cast<double>(expected + i))));
        EXPECT_EQ(sample.target.item<double>(), static_cast<double>(-(expected + i)));
      }
      expected += 2 * ranks;
      ++batches;
    }
    EXPECT_EQ(batches, 2);
  }
});
TEST(DispatchedStream, EveryRankReceivesItsPartOfWhatRank0Reads) {
  shards.everywhere();
}

const RankCase breaks("dispatched_breaks", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  auto loader = accelerator.data_loader(
      DispatchedStream(read_by_rank_0(communicator, {.count = 4 * communicator.size(), .broken_at = 3}), communicator));
  try {
    for ([[maybe_unused]] const auto& batch : loader) {
    }
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("the disk failed"), std::string::npos) << error.what();
  }
});
TEST(DispatchedStream, AStreamThatBreaksIsAnErrorOnAllRanks) {
  breaks.everywhere();
}

/// Batches that cannot be sent to other ranks.
struct Sparse {
  std::optional<at::Tensor> get_batch(std::size_t /*batch_size*/) { return at::ones({2}).to_sparse(); }
};
/// A stream whose reset() fails.
struct Closed {
  std::optional<at::Tensor> get_batch(std::size_t /*batch_size*/) { return at::ones({2}); }
  void reset() { throw UsageError("the file is not there"); }
};
const RankCase fails_outside_get_batch("dispatched_fails_outside_get_batch", [](const Communicator& communicator) {
  const auto check = [&](auto stream, const std::string& part) {
    DispatchedStream dispatched(std::move(stream), communicator);
    dispatched.set_epoch(1);
    dispatched.reset();
    if (communicator.rank() == 0) {
      expect_refused<UsageError>([&] { dispatched.get_batch(2); }, part);
    } else {
      expect_refused<DataError>([&] { dispatched.get_batch(2); }, part);
    }
  };
  check(Sparse{}, "dense");
  check(Closed{}, "the file is not there");
});
TEST(DispatchedStream, ABatchThatCannotBeSentAndAFailedResetAreErrorsOnAllRanks) {
  fails_outside_get_batch.on_threads({1, 2, 3});
}

const RankCase left_early("dispatched_left_early", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  auto loader = accelerator.data_loader(
      DispatchedStream(read_by_rank_0(communicator, {.count = 8 * communicator.size()}), communicator));
  for (int loop = 0; loop < 2; ++loop) {
    for (const auto& batch : loader) {
      EXPECT_EQ(batch.front().target.item<double>(), -(100.0 * loop + communicator.rank()));
      break;
    }
  }
});
TEST(DispatchedStream, ALoopMayBeLeftEarly) {
  left_early.everywhere();
}

/// Numbers that can be skipped.
struct SeekableNumbers : Numbers {
  void skip(std::size_t samples) { next += static_cast<std::int64_t>(samples); }
};
const RankCase resumed("dispatched_resumed", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  SeekableNumbers numbers;
  if (communicator.rank() == 0) numbers = SeekableNumbers{{.count = 4 * communicator.size()}};
  auto loader = accelerator.data_loader(DispatchedStream(numbers, communicator));
  loader.skip_first_batches(3);
  std::vector<double> read;
  for (const auto& batch : loader) read.push_back(-batch.front().target.item<double>());
  EXPECT_EQ(read, std::vector<double>{3.0 * communicator.size() + communicator.rank()});
});
TEST(DispatchedStream, CallsSkipOfRank0sStream) {
  resumed.on_threads({1, 2, 3});
}

TEST(DispatchedStream, RefusesAWorker) {
  Accelerator accelerator({.communicator = Communicator()});
  EXPECT_THROW(accelerator.data_loader(DispatchedStream(Numbers{.count = 4}, Communicator()), {.num_workers = 1}),
               UsageError);
}

// Each rank would train on the same batches.
TEST(DispatchedStream, RefusesShardingPerRank) {
  Accelerator accelerator({.communicator = Communicator()});
  EXPECT_THROW(accelerator.data_loader(DispatchedStream(Numbers{.count = 4}, Communicator()),
                                       {.sharding = StreamSharding::per_rank}),
               UsageError);
}

}  // namespace
}  // namespace tutti::test::dispatch_batches_test
