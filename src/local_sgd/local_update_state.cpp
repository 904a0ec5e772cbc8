// What the engine saves, and how it goes on with it.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <sstream>
#include <utility>

#include "local_sgd/check_options.h"
#include "local_sgd/engine_impl.h"

namespace tutti {

namespace {

std::string key_of(std::size_t fragment, const std::string& name) {
  return "fragment." + std::to_string(fragment) + "." + name;
}

[[noreturn]] void misfit(const std::string& what) {
  throw CheckpointError("the saved state does not fit this local-update engine, and nothing was loaded: " + what);
}

std::int64_t count_of(const StateDict& state, const std::string& name) {
  const auto value = state.get<std::int64_t>(name);
  if (value < 0) misfit("'" + name + "' is negative");
  return value;
}

double weight_of(const StateDict& state, const std::string& name) {
  const auto value = state.get<double>(name);
  if (!std::isfinite(value) || value < 0) misfit("'" + name + "' is no weight");
  return value;
}

}  // namespace

/// What a state says, read before anything changes.
struct LocalUpdateEngine::Impl::Loaded {
  struct OfMember {
    Progress since_sent;
    bool dirty = false;
    bool under_way = false;
  };

  std::int64_t steps = 0;
  local_sgd::Timetable timetable;
  Progress since_node;
  Progress since_state;
  std::vector<OfMember> members;
  /// Each with the tensor that it is copied into.
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors;
};

StateDict LocalUpdateEngine::Impl::state_dict() const {
  if (failure_) std::rethrow_exception(failure_);
  StateDict state;
  const auto set_progress = [&](const std::string& name, const Progress& progress) {
    state.set(name + ".steps", progress.steps);
    state.set(name + ".weight", progress.weight);
  };
  state.set("rank", static_cast<std::int64_t>(channel_.rank()));
  state.set("size", static_cast<std::int64_t>(channel_.size()));
  state.set("steps", stats_.steps);
  state.set("warmed", timetable_.warmed());
  state.set("position", timetable_.position());
  state.set("fragments", static_cast<std::int64_t>(members_.size()));
  set_progress("since_node", since_node_);
  set_progress("since_state", since_state_);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& member = *members_[i];
    if (member.under_way) member.work.wait();
    set_progress(key_of(i, "since_sent"), member.since_sent);
    state.set(key_of(i, "dirty"), member.dirty);
    if (member.under_way) state.set(key_of(i, "mean"), member.fragment.flat());
    if (member.under_way && member.fragment.sent().defined()) state.set(key_of(i, "sent"), member.fragment.sent());
    if (member.fragment.anchor().defined()) state.set(key_of(i, "anchor"), member.fragment.anchor());
    if (member.fragment.momentum().defined()) state.set(key_of(i, "momentum"), member.fragment.momentum());
    if (!member.exchange) continue;
    for (const auto& [name, tensor] : member.exchange->residuals()) state.set(key_of(i, name), tensor);
  }
  return state;
}

LocalUpdateEngine::Impl::Loaded LocalUpdateEngine::Impl::read(const Impl& into, const StateDict& state) {
  Loaded loaded{.timetable = into.timetable_, .since_node = {}, .since_state = {}, .members = {}, .tensors = {}};
  std::size_t used = 0;
  const auto progress = [&](const std::string& name) {
    used += 2;
    return Progress{.steps = count_of(state, name + ".steps"), .weight = weight_of(state, name + ".weight")};
  };
  const auto tensor = [&](const std::string& name, const at::Tensor& target) {
    ++used;
    const at::Tensor& saved = state.get<at::Tensor>(name);
    if (!saved.defined() || saved.sizes() != target.sizes() || saved.scalar_type() != target.scalar_type()) {
      std::ostringstream text;
      text << "'" << name << "' should be " << toString(target.scalar_type()) << target.sizes();
      misfit(text.str());
    }
    loaded.tensors.emplace_back(target, saved);
  };
  const std::int64_t rank = count_of(state, "rank"), size = count_of(state, "size");
  if (rank != into.channel_.rank() || size != into.channel_.size()) {
    misfit("it is that of rank " + std::to_string(rank) + " of " + std::to_string(size) + ", but this is rank " +
           std::to_string(into.channel_.rank()) + " of " + std::to_string(into.channel_.size()) +
           ". For another number of ranks call finish() before saving, and go on without the engine's state");
  }
  if (count_of(state, "fragments") != static_cast<std::int64_t>(into.members_.size())) {
    misfit("it has " + std::to_string(count_of(state, "fragments")) + " fragments, this has " +
           std::to_string(into.members_.size()));
  }
  loaded.steps = count_of(state, "steps");
  if (!loaded.timetable.move_to(count_of(state, "warmed"), count_of(state, "position"))) {
    misfit("its steps are no place in this timetable; the warm-up had another length");
  }
  used += 6;
  loaded.since_node = progress("since_node");
  loaded.since_state = progress("since_state");
  for (std::size_t i = 0; i < into.members_.size(); ++i) {
    const Member& member = *into.members_[i];
    Loaded::OfMember& of = loaded.members.emplace_back();
    of.since_sent = progress(key_of(i, "since_sent"));
    of.dirty = state.get<bool>(key_of(i, "dirty"));
    ++used;
    of.under_way = state.contains(key_of(i, "mean"));
    if (of.under_way) tensor(key_of(i, "mean"), member.fragment.flat());
    if (of.under_way && member.fragment.sent().defined()) tensor(key_of(i, "sent"), member.fragment.sent());
    if (member.fragment.anchor().defined()) tensor(key_of(i, "anchor"), member.fragment.anchor());
    if (member.fragment.momentum().defined()) tensor(key_of(i, "momentum"), member.fragment.momentum());
    if (!member.exchange) continue;
    for (const auto& [name, residual] : member.exchange->residuals()) tensor(key_of(i, name), residual);
  }
  // Anything else belongs to another method or format, and would be lost.
  if (used != state.values().size()) misfit("it holds more than this method and wire format keep");
  return loaded;
}

void LocalUpdateEngine::Impl::load_state_dict(const StateDict& state) {
  if (failure_) std::rethrow_exception(failure_);
  const at::NoGradGuard no_grad;
  for (const auto& member : members_) {
    if (member->under_way) member->work.wait();
  }
  const Loaded loaded = read(*this, state);
  // From here on nothing fails.
  for (const auto& [target, saved] : loaded.tensors) target.copy_(saved);
  stats_.steps = loaded.steps;
  timetable_ = loaded.timetable;
  since_node_ = loaded.since_node;
  since_state_ = loaded.since_state;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = *members_[i];
    member.since_sent = loaded.members[i].since_sent;
    member.dirty = loaded.members[i].dirty;
    member.under_way = loaded.members[i].under_way;
    member.work = Work();
    member.cost = {};
  }
}

}  // namespace tutti
