#include <algorithm>
#include <string>
#include <utility>

#include "data/sampled_epoch.h"
#include "tutti/core/error.h"
#include "tutti/detail/data/epoch_cursor.h"

namespace tutti {

EpochReading::EpochReading(std::shared_ptr<EpochCursor> cursor, EpochTail tail, const LoaderAgreement& agreement)
    : cursor_(std::move(cursor)),
      epoch_(cursor_->next_epoch()),
      tail_(tail),
      batch_size_(cursor_->options().batch_size) {
  if (cursor_->read_before().empty()) cursor_->forget_samples();
  if (agreement && cursor_->sampled_by_user()) compare_samples(agreement);
  sampled_ = cursor_->sampled(epoch_);
  cursor_->batches_per_epoch();  // throws if drop_last leaves no batch
  const ShardOptions shard_options = cursor_->sharding_of(epoch_);
  const auto read = cursor_->read_before();
  items_ = Shard(shard_options, epoch_, read);
  unique_items_ = unique_shard_size(shard_options, read);
  size_ = shard_batches(shard_options, read);
  if (tail_ != EpochTail::shorten || shard_options.drop_last) return;
  ShardOptions last_rank = shard_options;
  last_rank.rank = shard_options.world_size - 1;
  uneven_ = divide_up(unique_shard_size(last_rank, read), batch_size_) != size_;
  size_ = divide_up(unique_items_, batch_size_);
}

EpochReading::~EpochReading() {
  if (loop_ != 0) cursor_->end(loop_);
}

EpochBatch EpochReading::batch(std::int64_t number) const {
  const auto begin = number * batch_size_;
  EpochBatch batch{.filler = tail_ == EpochTail::join && begin >= unique_items_};
  const bool repeats = tail_ == EpochTail::repeat || batch.filler;
  const auto end = std::min(begin + batch_size_, repeats ? items_.size() : unique_items_);
  const auto own_end = std::clamp(unique_items_, begin, end);
  const auto append = [&](std::int64_t from, std::int64_t to) {
    for (auto i = from; i < to; ++i) {
      const auto item = items_[i];
      if (sampled_) {
        sampled_->append(item, batch.samples);
      } else {
        batch.samples.push_back(static_cast<std::size_t>(item));
      }
    }
    return static_cast<std::int64_t>(batch.samples.size());
  };
  const auto own = append(begin, own_end);
  batch.repeated = append(own_end, end) - own;
  return batch;
}

void EpochReading::received() {
  if (loop_ == 0) loop_ = cursor_->begin();
  cursor_->received(loop_);
  ++received_;
}

void EpochReading::compare_samples(const LoaderAgreement& agreement) const {
  constexpr std::int64_t failed = -1;
  std::shared_ptr<const SampledEpoch> mine;
  try {
    mine = cursor_->sampled(epoch_);
  } catch (...) {
    agreement({epoch_, failed, 0})();  // so that the other ranks do not wait for this one
    throw;
  }
  const auto all = agreement({epoch_, mine->size(), static_cast<std::int64_t>(mine->checksum())})();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][1] == failed) {
      const std::string why = "the sampler of rank " + std::to_string(rank) + " failed";
      throw PeerError(why, {static_cast<int>(rank)});
    }
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw MismatchError("the sampler returned " + std::to_string(all[0][1]) + " samples or batches for epoch " +
                        std::to_string(all[0][0]) + " on rank 0, and different ones on rank " + std::to_string(rank) +
                        " (" + std::to_string(all[rank][1]) + " for epoch " + std::to_string(all[rank][0]) +
                        "): a sampler must depend on the epoch only");
  }
}

}  // namespace tutti
