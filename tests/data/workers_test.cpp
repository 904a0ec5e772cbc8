// Loaders that read ahead on threads deliver the same batches in the same order, throw failures in place of their
// batch, and end cleanly.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "data/numbers.h"
#include "tutti/core/error.h"
#include "tutti/detail/data/prefetcher.h"

namespace tutti::workers_test {
namespace {

using test::Batches;
using test::Numbers;
using test::read;

TEST(Prefetcher, ReturnsResultsInOrder) {
  for (const std::size_t readers : {1, 2, 3, 7}) {
    std::vector<Prefetcher<std::int64_t>::Reader> all(readers, [](std::int64_t number) {
      return number < 20 ? std::optional<std::int64_t>(number * number) : std::nullopt;
    });
    Prefetcher<std::int64_t> prefetcher(all, 2);
    for (std::int64_t i = 0; i < 20; ++i) EXPECT_EQ(prefetcher.next(), i * i);
    EXPECT_EQ(prefetcher.next(), std::nullopt);
    EXPECT_EQ(prefetcher.next(), std::nullopt);
  }
}

/// A latch that holds readers until it opens, and counts them.
class Latch {
 public:
  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    ++arrivals_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void wait_for(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrivals_ >= count; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  int arrivals() {
    const std::lock_guard lock(mutex_);
    return arrivals_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrivals_ = 0;
  bool open_ = false;
};

TEST(Prefetcher, ReadersRunAtTheSameTime) {
  Latch latch;
  Prefetcher<int> prefetcher(std::vector<Prefetcher<int>::Reader>(3,
                                                                  [&latch](std::int64_t) {
                                                                    latch.arrive_and_wait();
                                                                    return std::optional<int>(1);
                                                                  }),
                             1);
  latch.wait_for(3);
  latch.open();
  EXPECT_EQ(prefetcher.next(), 1);
}

TEST(Prefetcher, ReadsNoFurtherAheadThanItMay) {
  std::mutex mutex;
  std::int64_t most = 0;
  std::int64_t taken = 0;
  Prefetcher<int> prefetcher(std::vector<Prefetcher<int>::Reader>(2,
                                                                  [&](std::int64_t number) {
                                                                    const std::lock_guard lock(mutex);
                                                                    most = std::max(most, number - taken);
                                                                    return std::optional<int>(0);
                                                                  }),
                             3);
  for (int i = 0; i < 100; ++i) {
    prefetcher.next();
    const std::lock_guard lock(mutex);
    ++taken;
  }
  // A reader may start another read before `taken` changes.
  EXPECT_LE(most, 2 * 3);
  EXPECT_GE(most, 1);
}

TEST(Prefetcher, AFailureIsThrownInPlaceOfItsResult) {
  std::vector<Prefetcher<int>::Reader> readers(2, [](std::int64_t number) -> std::optional<int> {
    if (number == 3) throw std::runtime_error("cannot read 3");
    return static_cast<int>(number);
  });
  Prefetcher<int> prefetcher(readers, 4);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(prefetcher.next(), i);
  EXPECT_THROW(prefetcher.next(), std::runtime_error);
  EXPECT_EQ(prefetcher.next(), std::nullopt);
}

TEST(Workers, ReadTheSameBatches) {
  for (const auto sharding : {Sharding::interleaved, Sharding::batches, Sharding::blocks_by_window}) {
    for (int world_size = 1; world_size <= 3; ++world_size) {
      for (int rank = 0; rank < world_size; ++rank) {
        const auto loader_with = [&](int workers) {
          const DataLoaderOptions options{
              .batch_size = 3, .shuffle = true, .sharding = sharding, .num_workers = workers};
          return DataLoader<Numbers>(Numbers(40), options, rank, world_size, 2);
        };
        auto plain = loader_with(0);
        const Batches first = read(plain);
        const Batches second = read(plain);
        for (const int workers : {1, 2, 5}) {
          auto loader = loader_with(workers);
          EXPECT_EQ(read(loader), first);
          EXPECT_EQ(read(loader), second);
        }
      }
    }
  }
}

/// Its third sample cannot be read.
struct Damaged {
  int size() const { return 8; }
  std::vector<int> get_batch(const std::vector<std::size_t>& indices) const {
    if (indices[0] == 2) throw std::runtime_error("cannot read");
    return {static_cast<int>(indices[0])};
  }
};
TEST(Workers, ALoopThatGoesOnAfterAFailureHasEnded) {
  DataLoader<Damaged> loader(Damaged{}, {.num_workers = 2}, 0, 1, 1);
  auto batch = loader.begin();
  ++batch;
  EXPECT_THROW(++batch, std::runtime_error);
  ++batch;
  EXPECT_TRUE(batch == loader.end());
}

/// Counts its copies and their reads. It can fail, and it can wait at a latch.
class Watched {
 public:
  struct Log {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::atomic<int> copies = 0;
    std::atomic<int> reads = 0;
    std::size_t fails_at = 1000;
    Latch* latch = nullptr;
  };
  Watched(int size, std::shared_ptr<Log> log) : size_(size), log_(std::move(log)) {}
  Watched(const Watched& other) : size_(other.size_), log_(other.log_) { ++log_->copies; }
  Watched(Watched&&) = default;

  int size() const { return size_; }
  std::vector<int> get_batch(const std::vector<std::size_t>& indices) {
    {
      const std::lock_guard lock(log_->mutex);
      log_->threads.insert(std::this_thread::get_id());
    }
    ++log_->reads;
    ++own_reads_;
    if (log_->latch != nullptr) log_->latch->arrive_and_wait();
    if (indices[0] == log_->fails_at) throw std::runtime_error("cannot read");
    return {static_cast<int>(indices[0]), own_reads_};
  }

 private:
  int size_;
  std::shared_ptr<Log> log_;
  int own_reads_ = 0;
};

TEST(Workers, EachWorkerReadsItsOwnCopyAndTheSameBatchesInEveryRun) {
  const auto log = std::make_shared<Watched::Log>();
  DataLoader<Watched> loader(Watched(7, log), {.num_workers = 3});
  log->copies = 0;
  Batches batches;
  for (const auto& batch : loader) batches.push_back(batch);
  EXPECT_EQ(log->copies, 3);
  // Worker 0 reads batches 0, 3 and 6: its own first, second and third.
  EXPECT_EQ(batches, (Batches{{0, 1}, {1, 1}, {2, 1}, {3, 2}, {4, 2}, {5, 2}, {6, 3}}));
  EXPECT_FALSE(log->threads.contains(std::this_thread::get_id()));
}

/// Its batches are the number of the epoch.
struct OfEpoch : Numbers {
  OfEpoch() : Numbers(2) {}
  void set_epoch(std::int64_t number) { epoch = static_cast<int>(number); }
  std::vector<int> get_batch(const std::vector<std::size_t>&) const { return {epoch}; }
  int epoch = -1;
};
TEST(Workers, TheDatasetKnowsTheEpochBeforeItIsCopied) {
  for (const int workers : {0, 2}) {
    DataLoader<OfEpoch> loader(OfEpoch(), {.num_workers = workers});
    EXPECT_EQ(read(loader), (Batches{{0}, {0}}));
    loader.set_epoch(5);
    EXPECT_EQ(read(loader), (Batches{{5}, {5}}));
  }
}

TEST(Workers, AFailureIsThrownInPlaceOfItsBatch) {
  for (const int workers : {0, 1, 2, 4}) {
    const auto log = std::make_shared<Watched::Log>();
    log->fails_at = 4;
    DataLoader<Watched> loader(Watched(9, log), {.num_workers = workers});
    int received = 0;
    std::int64_t counted = -1;
    const auto loop = [&] {
      for (const auto& batch : loader) {
        EXPECT_EQ(batch[0], received++);
        counted = loader.cursor()->batch_index();
      }
    };
    EXPECT_THROW(loop(), std::runtime_error) << workers << " workers";
    EXPECT_EQ(received, 4);
    EXPECT_EQ(counted, 4);
    EXPECT_TRUE(loader.stack()->empty());
    EXPECT_EQ(loader.epoch(), 1);
    log->fails_at = 1000;
    received = 0;
    loop();  // the next epoch
    EXPECT_EQ(received, 9);
  }
}

TEST(Workers, ALoopThatCannotBeginDoesNotMoveTheCursor) {
  const auto log = std::make_shared<Watched::Log>();
  log->fails_at = 0;
  DataLoader<Watched> loader(Watched(9, log), {.num_workers = 2});
  EXPECT_THROW(loader.begin(), std::runtime_error);
  EXPECT_EQ(loader.epoch(), 0);
  EXPECT_FALSE(loader.cursor()->reading());
  EXPECT_TRUE(loader.stack()->empty());
}

TEST(Workers, LeavingALoopEarlyEndsTheWorkersAndTheNextLoopBegins) {
  const auto log = std::make_shared<Watched::Log>();
  DataLoader<Watched> loader(Watched(1000, log), {.num_workers = 2, .prefetch_factor = 3});
  for (int loop = 0; loop < 5; ++loop) {
    for (const auto& batch : loader) {
      if (batch[0] == 2) break;
    }
    const int reads = log->reads.exchange(0);
    EXPECT_GE(reads, 3);
    EXPECT_LE(reads, 3 + 2 * 3 + 2);
    EXPECT_EQ(loader.epoch(), loop + 1);
  }
}

TEST(Workers, LeavingALoopWaitsForReadsInFlight) {
  const auto log = std::make_shared<Watched::Log>();
  Latch latch;
  DataLoader<Watched> loader(Watched(1000, log), {.num_workers = 3});
  {
    auto iterator = loader.begin();
    log->latch = nullptr;
  }
  log->latch = &latch;
  log->reads = 0;
  std::thread opener([&latch] {
    latch.wait_for(3);
    latch.open();
  });
  { auto iterator = loader.begin(); }
  opener.join();
  EXPECT_EQ(log->reads, latch.arrivals());  // no read continues
}

TEST(Workers, TheCursorCountsDeliveredBatches) {
  const auto log = std::make_shared<Watched::Log>();
  DataLoader<Watched> loader(Watched(20, log), {.num_workers = 2, .prefetch_factor = 4});
  std::int64_t received = 0;
  for ([[maybe_unused]] const auto& batch : loader) {
    EXPECT_EQ(loader.cursor()->batch_index(), ++received);
    if (received == 3) break;
  }
}

TEST(Workers, ResumeAfterEveryBatch) {
  const auto loader_of = [](int rank) {
    return DataLoader<Numbers>(Numbers(41), {.batch_size = 2, .shuffle = true, .seed = 5, .num_workers = 3}, rank, 2);
  };
  for (int rank = 0; rank < 2; ++rank) {
    auto uninterrupted = loader_of(rank);
    const Batches first = read(uninterrupted);
    const Batches second = read(uninterrupted);
    auto interrupted = loader_of(rank);
    std::ptrdiff_t received = 0;
    for ([[maybe_unused]] const auto& batch : interrupted) {
      ++received;
      auto resumed = loader_of(rank);
      resumed.load_state_dict(interrupted.state_dict());
      EXPECT_EQ(read(resumed), Batches(first.begin() + received, first.end()));
      EXPECT_EQ(read(resumed), second);
    }
    EXPECT_EQ(received, 11);
  }
}

TEST(Workers, NestedLoopsOverOneLoader) {
  DataLoader<Numbers> loader(Numbers(6), {.batch_size = 1, .num_workers = 2});
  int inner_batches = 0;
  for ([[maybe_unused]] const auto& outer : loader) {
    for ([[maybe_unused]] const auto& inner : loader) ++inner_batches;
  }
  EXPECT_EQ(inner_batches, 36);
}

TEST(Workers, MoreWorkersThanBatches) {
  DataLoader<Numbers> loader(Numbers(3), {.batch_size = 2, .num_workers = 8});
  EXPECT_EQ(read(loader), (Batches{{0, 1}, {2}}));
}

/// A dataset that cannot be copied.
struct Alone : Numbers {
  explicit Alone(int size) : Numbers(size) {}
  Alone(const Alone&) = delete;
  Alone(Alone&&) = default;
};

TEST(Workers, InvalidOptionsAreRefused) {
  EXPECT_THROW(DataLoader(Numbers(3), {.num_workers = -1}), UsageError);
  EXPECT_THROW(DataLoader(Numbers(3), {.num_workers = 1, .prefetch_factor = 0}), UsageError);
  EXPECT_THROW(DataLoader<Alone>(Alone(3), {.num_workers = 1}), UsageError);
  DataLoader<Alone> loader(Alone(3), {});
  EXPECT_EQ(read(loader).size(), 3U);
}

}  // namespace
}  // namespace tutti::workers_test
