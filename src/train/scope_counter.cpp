#include "train/scope_counter.h"

#include <algorithm>
#include <string>

#include "tutti/core/error.h"

namespace tutti {

std::int64_t ScopeCounter::number_on_batch(const LoaderPosition& position) const {
  return same_loop(position) && position.batch == batch_ ? on_batch_ + 1 : 1;
}

std::int64_t ScopeCounter::scopes_per_batch(const LoaderPosition& position) const {
  if (!same_loop(position)) return resumed_ ? per_batch_ : unknown;
  if (position.batch == batch_ || on_batch_ == 0) return per_batch_;
  return per_batch_ == unknown || per_batch_ == on_batch_ ? on_batch_ : varies;
}

std::int64_t ScopeCounter::scopes_on_previous_end(const LoaderPosition& position) const {
  if (same_loop(position)) return previous_end_;
  if (!continues_loader(position)) return unknown;
  return on_last_batch_ ? on_batch_ : previous_end_;
}

std::int64_t ScopeCounter::expected_on_last_batch(const LoaderPosition& position) const {
  const std::int64_t per_batch = scopes_per_batch(position);
  if (per_batch == varies) return 1;
  const std::int64_t previous_end = scopes_on_previous_end(position);
  return std::max<std::int64_t>(1, previous_end != unknown ? previous_end : per_batch);
}

bool ScopeCounter::ends_window(const LoaderPosition& position, const Rule& rule) const {
  if ((scopes_ + 1) % rule.num_steps == 0) return true;
  return rule.sync_with_dataloader && position.last_batch &&
         number_on_batch(position) >= expected_on_last_batch(position);
}

bool ScopeCounter::ends_too_many(const LoaderPosition& position, const Rule& rule) const {
  return rule.sync_with_dataloader && rule.num_steps > 1 && position.last_batch &&
         number_on_batch(position) > expected_on_last_batch(position);
}

void ScopeCounter::open(const LoaderPosition& position, const Rule& rule) {
  const bool ends = ends_window(position, rule);
  scopes_ = ends ? 0 : scopes_ + 1;
  split_ = position.split;
  if (position.loop == 0) return;
  const std::int64_t number = number_on_batch(position);
  const std::int64_t per_batch = scopes_per_batch(position);
  const std::int64_t previous_end = scopes_on_previous_end(position);
  per_batch_ = per_batch;
  previous_end_ = previous_end;
  on_batch_ = number;
  on_last_batch_ = position.last_batch;
  loader_ = position.loader;
  loop_ = position.loop;
  batch_ = position.batch;
  resumed_ = false;
}

bool ScopeCounter::left_open_by(const LoaderPosition& position, const Rule& rule) const {
  return rule.sync_with_dataloader && scopes_ > 0 && same_loop(position);
}

StateDict ScopeCounter::save(std::span<const ScopeCounter> counters, int world_size) {
  std::vector<std::int64_t> micro_batches, batches, per_batch, previous_end;
  for (const ScopeCounter& counter : counters) {
    // Summed over ranks, so that the window resumes on another number of ranks.
    micro_batches.push_back(counter.scopes_ * world_size);
    batches.push_back(counter.split_ ? counter.scopes_ : -1);
    const bool at_end = counter.on_last_batch_;
    const bool on_first_batch = counter.per_batch_ == unknown;
    per_batch.push_back(at_end ? unknown : on_first_batch ? counter.on_batch_ : counter.per_batch_);
    previous_end.push_back(at_end ? counter.on_batch_ : counter.previous_end_);
  }
  StateDict state;
  state.set("micro_batches", std::move(micro_batches));
  state.set("split_batches", std::move(batches));
  state.set("scopes_per_batch", std::move(per_batch));
  state.set("scopes_on_last_batch", std::move(previous_end));
  return state;
}

std::vector<ScopeCounter> ScopeCounter::load(const StateDict& state, std::size_t count, int world_size,
                                             std::int64_t num_steps) {
  using Numbers = std::vector<std::int64_t>;
  const auto numbers = [&](const std::string& name) { return state.get<Numbers>(name); };
  // Checkpoints of earlier versions have the first list only.
  const auto numbers_or = [&](const std::string& name, std::int64_t value) {
    return state.contains(name) ? numbers(name) : Numbers(count, value);
  };
  const Numbers micro_batches = numbers("micro_batches");
  const Numbers batches = numbers_or("split_batches", -1);
  const Numbers per_batch = numbers_or("scopes_per_batch", unknown);
  const Numbers previous_end = numbers_or("scopes_on_last_batch", unknown);
  if (micro_batches.size() != count || batches.size() != count || per_batch.size() != count ||
      previous_end.size() != count) {
    throw CheckpointError("the saved counts of accumulate() scopes are damaged: their numbers differ");
  }
  std::vector<ScopeCounter> counters(count);
  for (std::size_t i = 0; i < count; ++i) {
    ScopeCounter& counter = counters[i];
    const std::int64_t scopes = batches[i] >= 0 ? batches[i] : micro_batches[i] / world_size;
    counter.scopes_ = std::clamp<std::int64_t>(scopes, 0, num_steps - 1);
    counter.split_ = batches[i] >= 0;
    counter.per_batch_ = per_batch[i];
    counter.previous_end_ = previous_end[i];
    counter.resumed_ = true;
  }
  return counters;
}

}  // namespace tutti
