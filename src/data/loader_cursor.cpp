#include "tutti/detail/data/loader_cursor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "data/option_limits.h"
#include "tutti/core/error.h"

namespace tutti {

std::int64_t LoaderCursor::batch_index() const {
  std::int64_t batches = 0;
  for (const EpochSegment& segment : segments()) batches += segment.batches;
  return batches;
}

double LoaderCursor::batches_of_this_sharding() const {
  const auto samples_of = [](const EpochSegment& segment) {
    return static_cast<double>(segment.world_size) * static_cast<double>(segment.batch_size);
  };
  double batches = 0;
  for (const EpochSegment& segment : segments()) {
    batches += static_cast<double>(segment.batches) * (samples_of(segment) / samples_of(new_segment_));
  }
  return batches;
}

void LoaderCursor::set_epoch(std::int64_t epoch) {
  if (epoch < 0) throw UsageError("set_epoch: the epoch is " + std::to_string(epoch) + ": it must not be negative");
  require_at_most("set_epoch: the epoch", epoch, last_epoch);
  if (epoch == epoch_) return;
  epoch_ = epoch;
  next_epoch_ = epoch + 1;
  segments_.clear();
  restored_ = false;
}

void LoaderCursor::skip(std::int64_t batches) {
  if (reading()) throw UsageError("skip_first_batches: a loop is running; call it before the loop that skips batches");
  if (restored_) {
    throw UsageError("skip_first_batches: load_state() has set this loader to batch " + std::to_string(batch_index()) +
                     " of its epoch already: leave skip_first_batches() out");
  }
  const auto left = batches_left();
  if (batches < 0 || (left >= 0 && batches > left)) {
    throw UsageError("skip_first_batches: cannot skip " + std::to_string(batches) +
                     (left < 0 ? "" : " of the " + std::to_string(left) + " batches that are left"));
  }
  require_at_most("skip_first_batches: the number of batches", batches, most_skipped_batches);
  if (batches > 0) count(segments_, batches);
}

std::int64_t LoaderCursor::begin() {
  running_.push_back({.number = ++loops_, .epoch = epoch_, .segments = std::exchange(segments_, {})});
  epoch_ = next_epoch_;
  next_epoch_ = epoch_ + 1;
  restored_ = false;
  return loops_;
}

void LoaderCursor::received(std::int64_t loop) {
  const auto running = std::ranges::find(running_, loop, &RunningLoop::number);
  if (running == running_.end()) {
    throw UsageError("load_state() has set this loader to batch " + std::to_string(batch_index()) + " of epoch " +
                     std::to_string(epoch()) +
                     " while a loop over it was running: leave the loop after load_state(), the next one reads on from "
                     "there");
  }
  count(running->segments, 1);
  std::rotate(running, running + 1, running_.end());
}

void LoaderCursor::end(std::int64_t loop) {
  std::erase_if(running_, [loop](const RunningLoop& running) { return running.number == loop; });
}

void LoaderCursor::count(std::vector<EpochSegment>& segments, std::int64_t batches) const {
  if (segments.empty() || !same_sharding(segments.back(), new_segment_)) {
    segments.push_back(new_segment_);
    segments.back().batches = 0;
  }
  segments.back().batches += batches;
}

LoaderCursor::ReadState LoaderCursor::read_state_from(const StateDict& state) {
  const auto& worlds = state.get<std::vector<std::int64_t>>("segments.world_size");
  const auto& sizes = state.get<std::vector<std::int64_t>>("segments.batch_size");
  const auto& steps = state.get<std::vector<std::int64_t>>("segments.accumulation_steps");
  const auto& batches = state.get<std::vector<std::int64_t>>("segments.batches");
  if (sizes.size() != worlds.size() || steps.size() != worlds.size() || batches.size() != worlds.size()) {
    throw CheckpointError("the saved position in the data is damaged: its segments differ in number");
  }
  ReadState read_state{.epoch = state.get<std::int64_t>("epoch"), .next_epoch = state.get<std::int64_t>("next_epoch")};
  if (read_state.epoch < 0 || read_state.next_epoch < 0) {
    throw CheckpointError("the saved position in the data is damaged: a negative epoch");
  }
  for (std::size_t i = 0; i < worlds.size(); ++i) {
    read_state.segments.push_back({.world_size = static_cast<int>(worlds[i]),
                                   .batch_size = sizes[i],
                                   .accumulation_steps = steps[i],
                                   .batches = batches[i]});
  }
  return read_state;
}

void LoaderCursor::save_read_state(StateDict& state) const {
  std::vector<std::int64_t> worlds, sizes, steps, batches;
  for (const EpochSegment& segment : segments()) {
    worlds.push_back(segment.world_size);
    sizes.push_back(segment.batch_size);
    steps.push_back(segment.accumulation_steps);
    batches.push_back(segment.batches);
  }
  state.set("epoch", epoch());
  state.set("next_epoch", reading() ? epoch_ : next_epoch_);
  state.set("segments.world_size", std::move(worlds));
  state.set("segments.batch_size", std::move(sizes));
  state.set("segments.accumulation_steps", std::move(steps));
  state.set("segments.batches", std::move(batches));
}

void LoaderCursor::set_read_state(ReadState read_state) {
  epoch_ = read_state.epoch;
  next_epoch_ = read_state.next_epoch;
  segments_ = std::move(read_state.segments);
  running_.clear();
  restored_ = !segments_.empty();
}

}  // namespace tutti
