#include "tutti/data/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <string>

#include "tutti/core/error.h"

namespace tutti {
namespace {

std::int64_t divide_up(std::int64_t dividend, std::int64_t divisor) {
  return (dividend + divisor - 1) / divisor;
}

void require(bool condition, const std::string& message) {
  if (!condition) throw UsageError(message);
}

void validate(const ShardOptions& options) {
  require(options.dataset_size > 0, "the dataset is empty");
  require(options.world_size >= 1, "world_size is " + std::to_string(options.world_size) + ": it must be at least 1");
  require(options.rank >= 0 && options.rank < options.world_size,
          "rank is " + std::to_string(options.rank) + ": it must be 0 .. " + std::to_string(options.world_size - 1));
  require(options.batch_size >= 1, "batch_size is " + std::to_string(options.batch_size) + ": it must be at least 1");
  require(options.accumulation_steps >= 1,
          "accumulation_steps is " + std::to_string(options.accumulation_steps) + ": it must be at least 1");
}

/// An epoch's samples in order, without end: after the last one the first ones come again.
class SampleOrder {
 public:
  SampleOrder(const ShardOptions& options, std::int64_t epoch) : size_(options.dataset_size) {
    if (!options.shuffle) return;
    const auto seed = options.seed + static_cast<std::uint64_t>(epoch);
    shuffled_ = at::randperm(size_, at::make_generator<at::CPUGeneratorImpl>(seed), at::TensorOptions(at::kLong));
    samples_ = shuffled_.const_data_ptr<std::int64_t>();
  }

  std::int64_t operator[](std::int64_t position) const {
    position %= size_;
    return samples_ == nullptr ? position : samples_[position];
  }

 private:
  std::int64_t size_;
  at::Tensor shuffled_;
  const std::int64_t* samples_ = nullptr;
};

}  // namespace

std::int64_t shard_size(const ShardOptions& options) {
  validate(options);
  const auto unit = options.sharding == Sharding::interleaved ? 1 : options.batch_size;
  const auto round = options.world_size * unit;
  return (options.drop_last ? options.dataset_size / round : divide_up(options.dataset_size, round)) * unit;
}

std::vector<std::int64_t> shard_indices(const ShardOptions& options, std::int64_t epoch) {
  const auto size = shard_size(options);
  require(epoch >= 0, "epoch is " + std::to_string(epoch) + ": it must not be negative");
  const SampleOrder order(options, epoch);
  std::vector<std::int64_t> indices;
  indices.reserve(static_cast<std::size_t>(size));
  if (options.sharding == Sharding::interleaved) {
    for (std::int64_t i = 0; i < size; ++i) indices.push_back(order[options.rank + i * options.world_size]);
    return indices;
  }
  const auto block = options.accumulation_steps * options.batch_size;
  for (std::int64_t done = 0; done < size; done += block) {
    // All ranks are equally far, so the window starts where `done` samples of each of them end.
    const auto here = std::min(block, size - done);
    const auto first = done * options.world_size + options.rank * here;
    for (std::int64_t i = 0; i < here; ++i) indices.push_back(order[first + i]);
  }
  return indices;
}

}  // namespace tutti
