#include "tutti/data/epoch_cursor.h"

#include <algorithm>
#include <string>

#include "tutti/core/error.h"

namespace tutti {

namespace {

std::string name_of(Sharding sharding) {
  return sharding == Sharding::interleaved ? "interleaved" : "blocks_by_window";
}

std::string in_words(std::int64_t value) {
  return std::to_string(value);
}
std::string in_words(bool value) {
  return value ? "true" : "false";
}
std::string in_words(const std::string& value) {
  return value;
}

template <typename T>
void check_same(const StateDict& state, const std::string& name, const T& here) {
  const T& saved = state.get<T>(name);
  if (saved == here) return;
  throw CheckpointError("the saved place in the data has " + name + " " + in_words(saved) + ", this loader has " +
                        in_words(here) + ": make the loader as it was, or start the epoch anew");
}

std::vector<EpochSegment> segments_from(const StateDict& state) {
  const auto& worlds = state.get<std::vector<std::int64_t>>("segments.world_size");
  const auto& sizes = state.get<std::vector<std::int64_t>>("segments.batch_size");
  const auto& steps = state.get<std::vector<std::int64_t>>("segments.accumulation_steps");
  const auto& batches = state.get<std::vector<std::int64_t>>("segments.batches");
  if (sizes.size() != worlds.size() || steps.size() != worlds.size() || batches.size() != worlds.size()) {
    throw CheckpointError("the saved place in the data is damaged: its segments differ in number");
  }
  std::vector<EpochSegment> segments;
  for (std::size_t i = 0; i < worlds.size(); ++i) {
    segments.push_back({.world_size = static_cast<int>(worlds[i]),
                        .batch_size = sizes[i],
                        .accumulation_steps = steps[i],
                        .batches = batches[i]});
  }
  return segments;
}

}  // namespace

EpochCursor::EpochCursor(const ShardOptions& options) : options_(options), batches_per_epoch_(shard_batches(options)) {
  if (batches_per_epoch_ == 0) {
    throw UsageError("drop_last leaves no batch: " + std::to_string(options.dataset_size) + " samples on " +
                     std::to_string(options.world_size) + " ranks do not fill a batch of " +
                     std::to_string(options.batch_size) + " on each");
  }
}

std::int64_t EpochCursor::batch_index() const {
  std::int64_t batches = 0;
  for (const EpochSegment& segment : segments_) batches += segment.batches;
  return batches;
}

void EpochCursor::set_epoch(std::int64_t epoch) {
  if (reading()) {
    next_epoch_ = epoch;
    return;
  }
  if (epoch == epoch_) return;
  epoch_ = epoch;
  next_epoch_ = epoch + 1;
  segments_.clear();
}

void EpochCursor::skip(std::int64_t batches) {
  if (reading()) throw UsageError("skip_first_batches: a loop is under way; call it before the loop that it is for");
  const auto left = shard_batches(options_, segments_);
  if (batches < 0 || batches > left) {
    throw UsageError("skip_first_batches: cannot skip " + std::to_string(batches) + " of the " + std::to_string(left) +
                     " batches that are left");
  }
  if (batches > 0) count(batches);
}

std::int64_t EpochCursor::begin() {
  if (reading()) end(reading_);
  reading_ = ++loops_;
  return reading_;
}

void EpochCursor::received(std::int64_t loop) {
  if (loop == reading_) count(1);
}

void EpochCursor::end(std::int64_t loop) {
  if (loop != reading_) return;
  reading_ = 0;
  epoch_ = next_epoch_;
  next_epoch_ = epoch_ + 1;
  segments_.clear();
}

void EpochCursor::count(std::int64_t batches) {
  if (segments_.empty() || !same_dealing(segments_.back(), options_)) {
    segments_.push_back({.world_size = options_.world_size,
                         .batch_size = options_.batch_size,
                         .accumulation_steps = options_.accumulation_steps,
                         .batches = 0});
  }
  segments_.back().batches += batches;
}

StateDict EpochCursor::state_dict() const {
  StateDict state;
  state.set("epoch", epoch_);
  state.set("next_epoch", next_epoch_);
  state.set("dataset_size", options_.dataset_size);
  state.set("shuffle", options_.shuffle);
  state.set("seed", static_cast<std::int64_t>(options_.seed));
  state.set("sharding", name_of(options_.sharding));
  state.set("drop_last", options_.drop_last);
  std::vector<std::int64_t> worlds, sizes, steps, batches;
  for (const EpochSegment& segment : segments_) {
    worlds.push_back(segment.world_size);
    sizes.push_back(segment.batch_size);
    steps.push_back(segment.accumulation_steps);
    batches.push_back(segment.batches);
  }
  state.set("segments.world_size", std::move(worlds));
  state.set("segments.batch_size", std::move(sizes));
  state.set("segments.accumulation_steps", std::move(steps));
  state.set("segments.batches", std::move(batches));
  return state;
}

void EpochCursor::load_state_dict(const StateDict& state) {
  check_same(state, "dataset_size", options_.dataset_size);
  check_same(state, "shuffle", options_.shuffle);
  check_same(state, "seed", static_cast<std::int64_t>(options_.seed));
  check_same(state, "sharding", name_of(options_.sharding));
  check_same(state, "drop_last", options_.drop_last);
  const auto epoch = state.get<std::int64_t>("epoch");
  const auto next_epoch = state.get<std::int64_t>("next_epoch");
  auto segments = segments_from(state);
  if (epoch < 0 || next_epoch < 0) throw CheckpointError("the saved place in the data is damaged: a negative epoch");
  try {
    shard_size(options_, segments);
  } catch (const UsageError& error) {
    throw CheckpointError(std::string("the saved place in the data is damaged: ") + error.what());
  }
  epoch_ = epoch;
  next_epoch_ = next_epoch;
  segments_ = std::move(segments);
  reading_ = 0;
}

EpochReading::EpochReading(std::shared_ptr<EpochCursor> cursor) : cursor_(std::move(cursor)) {
  const auto read = cursor_->read_before();
  indices_ = shard_indices(cursor_->options(), cursor_->next_epoch(), read);
  batches_left_ = shard_batches(cursor_->options(), read);
}

EpochReading::~EpochReading() {
  if (loop_ != 0) cursor_->end(loop_);
}

std::int64_t EpochReading::batch_end() const {
  return std::min(next_ + cursor_->options().batch_size, static_cast<std::int64_t>(indices_.size()));
}

std::vector<std::size_t> EpochReading::next_batch() const {
  return {indices_.begin() + next_, indices_.begin() + batch_end()};
}

void EpochReading::received() {
  if (loop_ == 0) loop_ = cursor_->begin();
  cursor_->received(loop_);
  next_ = batch_end();
  --batches_left_;
}

void EpochReading::end_empty_epoch() {
  cursor_->end(cursor_->begin());
}

}  // namespace tutti
