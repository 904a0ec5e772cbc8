#include "tutti/detail/data/epoch_cursor.h"

#include <array>
#include <string>
#include <utility>

#include "data/sampled_epoch.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

std::string name_of(Sharding sharding) {
  constexpr std::array names{"interleaved", "batches", "blocks_by_window"};
  return names.at(static_cast<std::size_t>(sharding));
}

std::string to_text(std::int64_t value) {
  return std::to_string(value);
}
std::string to_text(bool value) {
  return value ? "true" : "false";
}
std::string to_text(const std::string& value) {
  return value;
}

template <typename T>
void check_same(const StateDict& state, const std::string& name, const T& here) {
  const T& saved = state.get<T>(name);
  if (saved == here) return;
  throw CheckpointError("the saved position in the data has " + name + " " + to_text(saved) + ", this loader has " +
                        to_text(here) + ": use the same loader options, or load a checkpoint between two epochs");
}

}  // namespace

EpochCursor::EpochCursor(const ShardOptions& options, Sampler sampler, BatchSampler batch_sampler)
    : LoaderCursor({.world_size = options.world_size,
                    .batch_size = options.batch_size,
                    .accumulation_steps = options.accumulation_steps}),
      options_(options),
      sampler_(std::move(sampler)),
      batch_sampler_(std::move(batch_sampler)) {
  if (sampler_ && batch_sampler_) throw UsageError("set a sampler or a batch sampler, not both");
  if ((sampler_ || batch_sampler_) && options_.shuffle) {
    throw UsageError("a sampler determines the order of the samples: shuffle in the sampler, and leave shuffle off");
  }
  shard_size(options_);  // throws for an empty dataset before a sampler is called
  batches_per_epoch();
}

std::shared_ptr<const SampledEpoch> EpochCursor::sampled(std::int64_t epoch) const {
  if (!sampler_ && !batch_sampler_) return nullptr;
  if (sampled_number_ != epoch) {
    sampled_ = sampler_ ? sample_epoch(sampler_, epoch, options_.dataset_size)
                        : sample_epoch(batch_sampler_, epoch, options_.dataset_size);
    sampled_number_ = epoch;
  }
  return sampled_;
}

ShardOptions EpochCursor::sharding_of(std::int64_t epoch) const {
  ShardOptions shard_options = options_;
  if (const auto items = sampled(epoch)) shard_options.dataset_size = items->size();
  return shard_options;
}

std::int64_t EpochCursor::batches_per_epoch() const {
  const ShardOptions shard_options = sharding_of(next_epoch());
  const auto batches = shard_batches(shard_options);
  if (batches > 0) return batches;
  throw UsageError("drop_last leaves no batch: " + std::to_string(shard_options.dataset_size) +
                   (batch_sampler_ ? " batches on " : " samples on ") + std::to_string(shard_options.world_size) +
                   " ranks do not fill a batch of " + std::to_string(shard_options.batch_size) +
                   " on each: use a smaller batch_size, or leave drop_last off");
}

std::int64_t EpochCursor::local_batches_per_epoch() const {
  if (options_.drop_last) return batches_per_epoch();
  return divide_up(unique_shard_size(sharding_of(next_epoch())), options_.batch_size);
}

std::int64_t EpochCursor::batches_left() const {
  return shard_batches(sharding_of(epoch()), segments());
}

StateDict EpochCursor::state_dict() const {
  StateDict state;
  save_read_state(state);
  state.set("dataset_size", options_.dataset_size);
  state.set("shuffle", options_.shuffle);
  state.set("seed", static_cast<std::int64_t>(options_.seed));
  state.set("sharding", name_of(options_.sharding));
  state.set("drop_last", options_.drop_last);
  state.set("sampler", std::string(sampler_ ? "samples" : batch_sampler_ ? "batches" : "none"));
  if (segments().empty()) return state;  // the epoch's samples are not drawn yet
  if (const auto items = sampled(epoch())) state.set("sampled", static_cast<std::int64_t>(items->checksum()));
  return state;
}

void EpochCursor::load_state_dict(const StateDict& state) {
  const std::string size = "dataset_size";
  (void)state.get<std::int64_t>(size);  // throws for the state of another kind of loader
  ReadState read_state = read_state_from(state);
  forget_samples();
  if (read_state.segments.empty()) return set_read_state(std::move(read_state));  // no option matters between epochs
  check_same(state, size, options_.dataset_size);
  check_same(state, "shuffle", options_.shuffle);
  check_same(state, "seed", static_cast<std::int64_t>(options_.seed));
  check_same(state, "sharding", name_of(options_.sharding));
  check_same(state, "drop_last", options_.drop_last);
  check_same(state, "sampler", std::string(sampler_ ? "samples" : batch_sampler_ ? "batches" : "none"));
  try {
    shard_size(sharding_of(read_state.epoch), read_state.segments);
  } catch (const UsageError& error) {
    throw CheckpointError(std::string("the saved position in the data is damaged: ") + error.what());
  }
  if (const auto items = sampled(read_state.epoch)) {
    if (state.get<std::int64_t>("sampled") != static_cast<std::int64_t>(items->checksum())) {
      throw CheckpointError("the sampler returned other samples for epoch " + std::to_string(read_state.epoch) +
                            " than when the position in the data was saved: use the same sampler, or load a checkpoint "
                            "between two epochs");
    }
  }
  set_read_state(std::move(read_state));
}

}  // namespace tutti
