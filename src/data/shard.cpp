#include "tutti/detail/data/shard.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <string>
#include <utility>

#include "data/option_limits.h"
#include "data/positions.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

void validate(const ShardOptions& options) {
  require_option(options.dataset_size > 0, "the dataset is empty: check the files and the split that it was made from");
  require_option(options.world_size >= 1,
                 "world_size is " + std::to_string(options.world_size) + ": it must be at least 1");
  require_option(
      options.rank >= 0 && options.rank < options.world_size,
      "rank is " + std::to_string(options.rank) + ": it must be 0 .. " + std::to_string(options.world_size - 1));
  require_option(options.batch_size >= 1,
                 "batch_size is " + std::to_string(options.batch_size) + ": it must be at least 1");
  require_option(options.accumulation_steps >= 1,
                 "accumulation_steps is " + std::to_string(options.accumulation_steps) + ": it must be at least 1");
  require_at_most("batch_size", options.batch_size, most_samples_in_micro_batch);
  require_at_most("accumulation_steps", options.accumulation_steps, most_accumulation_steps);
}

/// Number of samples that each rank reads of `count`.
std::int64_t share_of(const ShardOptions& options, std::int64_t count) {
  const auto unit = options.sharding == Sharding::interleaved ? 1 : options.batch_size;
  const auto round = options.world_size * unit;
  return (options.drop_last ? count / round : divide_up(count, round)) * unit;
}

/// Number of samples of a rank in a window.
std::int64_t block_of(const ShardOptions& options) {
  return options.sharding == Sharding::blocks_by_window ? options.accumulation_steps * options.batch_size
                                                        : options.batch_size;
}

std::int64_t batches_of(const ShardOptions& options, std::int64_t share) {
  return options.drop_last ? share / options.batch_size : divide_up(share, options.batch_size);
}

/// The places of `count` samples that no rank has read after `batches` micro-batches of each.
std::vector<Interval> unread_places(const ShardOptions& options, std::int64_t count, std::int64_t batches) {
  const auto share = share_of(options, count);
  require_option(batches >= 0 && batches <= batches_of(options, share),
                 std::to_string(batches) + " micro-batches of an epoch cannot have been read on each of " +
                     std::to_string(options.world_size) + " ranks: the epoch had " +
                     std::to_string(batches_of(options, share)));
  const auto read = std::min(batches * options.batch_size, share);
  if (options.sharding == Sharding::interleaved) return {{.begin = read * options.world_size, .end = count}};

  // Whole windows have been read. In the current window each rank has read the start of its block.
  const auto block = block_of(options);
  const auto whole = read / block * block;
  const auto here = std::min(block, share - whole);
  std::vector<Interval> unread;
  auto begin = whole * options.world_size;
  for (int rank = 0; rank < options.world_size; ++rank, begin += here) {
    unread.push_back({.begin = begin + read - whole, .end = begin + here});
  }
  unread.push_back({.begin = begin, .end = count});
  for (Interval& interval : unread) interval.end = std::min(interval.end, count);
  return unread;
}

/// The rest of an epoch, and the number of its micro-batches that have been read under the current sharding.
struct Rest {
  Positions positions;
  std::int64_t batches_read = 0;
};

Rest rest_after(const ShardOptions& options, std::span<const EpochSegment> read) {
  validate(options);
  Rest rest{.positions = Positions(options.dataset_size), .batches_read = 0};
  for (std::size_t i = 0; i < read.size(); ++i) {
    ShardOptions past_options = options;
    past_options.rank = 0;
    past_options.world_size = read[i].world_size;
    past_options.batch_size = read[i].batch_size;
    past_options.accumulation_steps = read[i].accumulation_steps;
    validate(past_options);
    const auto unread = unread_places(past_options, rest.positions.size(), read[i].batches);
    const EpochSegment next{.world_size = options.world_size,
                            .batch_size = options.batch_size,
                            .accumulation_steps = options.accumulation_steps};
    if (i + 1 == read.size() && same_sharding(read[i], next)) {
      rest.batches_read = read[i].batches;
    } else {
      rest.positions.keep(unread);
    }
  }
  return rest;
}

/// Number of samples of its share that a rank has read.
std::int64_t samples_read(const ShardOptions& options, const Rest& rest) {
  return std::min(rest.batches_read * options.batch_size, share_of(options, rest.positions.size()));
}

/// Number of samples in a rank's share of `count` that are not repeats. Repeats are at the end of a share.
std::int64_t own_part(const ShardOptions& options, std::int64_t count) {
  const auto share = share_of(options, count);
  if (options.sharding == Sharding::interleaved) {
    return std::clamp<std::int64_t>(divide_up(count - options.rank, options.world_size), 0, share);
  }
  if (share == 0) return 0;
  const auto block = block_of(options);
  const auto done = (share - 1) / block * block;  // samples before the last window
  const auto here = share - done;
  return done + std::clamp<std::int64_t>(count - done * options.world_size - options.rank * here, 0, here);
}

}  // namespace

bool same_sharding(const EpochSegment& a, const EpochSegment& b) {
  return a.world_size == b.world_size && a.batch_size == b.batch_size && a.accumulation_steps == b.accumulation_steps;
}

std::int64_t shard_size(const ShardOptions& options, std::span<const EpochSegment> read) {
  const Rest rest = rest_after(options, read);
  return share_of(options, rest.positions.size()) - samples_read(options, rest);
}

std::int64_t shard_batches(const ShardOptions& options, std::span<const EpochSegment> read) {
  return batches_of(options, shard_size(options, read));
}

std::int64_t unique_shard_size(const ShardOptions& options, std::span<const EpochSegment> read) {
  const Rest rest = rest_after(options, read);
  return std::max<std::int64_t>(0, own_part(options, rest.positions.size()) - samples_read(options, rest));
}

struct Shard::Order {
  ShardOptions options;
  Positions positions;    // of the epoch's order that have not been read
  at::Tensor shuffled{};  // the epoch's order; undefined if it is that of the dataset
  std::int64_t share;     // of each rank
  std::int64_t read;      // the part of the share that has been read
};

Shard::Shard(const ShardOptions& options, std::int64_t epoch, std::span<const EpochSegment> read) {
  Rest rest = rest_after(options, read);
  require_option(epoch >= 0, "epoch is " + std::to_string(epoch) + ": it must not be negative");
  const auto share = share_of(options, rest.positions.size());
  const auto samples = samples_read(options, rest);
  size_ = share - samples;
  Order order{.options = options, .positions = std::move(rest.positions), .share = share, .read = samples};
  if (options.shuffle) {
    const auto seed = options.seed + static_cast<std::uint64_t>(epoch);
    order.shuffled = at::randperm(options.dataset_size, at::make_generator<at::CPUGeneratorImpl>(seed),
                                  at::TensorOptions(at::kLong));
  }
  order_ = std::make_shared<const Order>(std::move(order));
}

std::int64_t Shard::operator[](std::int64_t number) const {
  const auto& [options, positions, shuffled, share, read] = *order_;
  const auto i = read + number;
  auto place = options.rank + i * options.world_size;
  if (options.sharding != Sharding::interleaved) {
    const auto block = block_of(options);
    const auto done = i / block * block;  // each rank has read these before this window
    const auto here = std::min(block, share - done);
    place = done * options.world_size + options.rank * here + i - done;
  }
  const auto left = positions.size();
  // After the end: the epoch's first samples, as often as needed.
  const auto position = place < left ? positions[place] : (place - left) % options.dataset_size;
  return shuffled.defined() ? shuffled.const_data_ptr<std::int64_t>()[position] : position;
}

}  // namespace tutti
