// The engine's exchanges: what is handed to the channel's thread, and waiting for it.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <bit>
#include <chrono>

#include "local_sgd/engine_impl.h"

namespace tutti {

using local_sgd::ExchangeCost;
using local_sgd::ExchangeHeader;
using local_sgd::ExchangeKind;
using local_sgd::MeanExchange;

namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

// The mean of one rank's model is that model.
bool LocalUpdateEngine::Impl::alone() const {
  return channel_.size() == 1 && options_.method == OuterMethod::average;
}

ExchangeHeader LocalUpdateEngine::Impl::header(ExchangeKind kind) const {
  return {.kind = kind, .fragment = 0, .step = stats_.steps};
}

void LocalUpdateEngine::Impl::send(int index) {
  Member& member = *members_[static_cast<std::size_t>(index)];
  ExchangeHeader mine = header(ExchangeKind::round);
  mine.fragment = index;
  mine.weight = groups_ ? since_node_.weight : member.since_sent.weight;
  mine.round_weight = member.since_sent.weight;
  if (options_.method == OuterMethod::slowmo) {
    double sum = 0;
    for (const auto& group : optimizer_->param_groups()) sum = 2 * sum + group.options().get_lr();
    mine.check = std::bit_cast<std::uint64_t>(sum);
  }
  // What remains of a late result may be combined without a step in between.
  const bool zero_is_equal = member.since_sent.steps == 0;
  member.fragment.collect();
  member.since_sent = {};
  member.dirty = false;
  member.cost = {};
  member.under_way = true;
  ++stats_.rounds;
  member.work = channel_.submit([this, &member, mine, zero_is_equal] {
    const at::NoGradGuard no_grad;
    const Stopwatch watch(member.cost.seconds);
    const at::Tensor& flat = member.fragment.flat();
    if (groups_) {
      groups_->mean(flat, mine, zero_is_equal, member.exchange.get(), options_.message_bytes, member.cost);
    } else {
      member.exchange->run(flat, mine, zero_is_equal, member.cost);
    }
  });
}

void LocalUpdateEngine::Impl::apply(int index, bool late, const std::vector<double>& rates) {
  Member& member = *members_[static_cast<std::size_t>(index)];
  wait(member.work);
  member.work = Work();
  member.under_way = false;
  add(member.cost);
  member.fragment.apply(late, rates);
  member.dirty = late && (options_.streaming.mix != 0 || options_.streaming.keep_progress);
}

void LocalUpdateEngine::Impl::combine_side_state() {
  run([this](ExchangeCost& cost) {
    const auto mean = [&](const at::Tensor& flat, std::uint64_t check) {
      ExchangeHeader mine = header(ExchangeKind::state);
      mine.weight = groups_ ? since_node_.weight : since_state_.weight;
      mine.round_weight = since_state_.weight;
      mine.check = check;
      const auto exact = [&](const Communicator& group, std::int64_t elements) {
        return MeanExchange(group, elements, WireFormat::fp32, options_.message_bytes);
      };
      if (!groups_) {
        exact(channel_, flat.numel()).run(flat, mine, true, cost);
      } else if (groups_->across()) {
        MeanExchange between = exact(*groups_->across(), groups_->own_part(flat.numel()).length);
        groups_->mean(flat, mine, true, &between, options_.message_bytes, cost);
      } else {
        groups_->mean(flat, mine, true, nullptr, options_.message_bytes, cost);
      }
    };
    cost.bytes += side_state_->combine(channel_, mean);
  });
  since_node_ = {};
  since_state_ = {};
}

void LocalUpdateEngine::Impl::agree_to_finish() {
  run([this](ExchangeCost& cost) {
    MeanExchange(channel_, 0, WireFormat::fp32, options_.message_bytes)
        .run(members_.front()->fragment.flat().slice(0, 0, 0), header(ExchangeKind::finish), true, cost);
  });
}

void LocalUpdateEngine::Impl::run(const std::function<void(ExchangeCost&)>& task) {
  ExchangeCost cost;
  wait(channel_.submit([&] {
    const at::NoGradGuard no_grad;
    const Stopwatch watch(cost.seconds);
    task(cost);
  }));
  add(cost);
}

void LocalUpdateEngine::Impl::wait(const Work& work) {
  const Stopwatch watch(stats_.seconds_stalled);
  work.wait();
}

void LocalUpdateEngine::Impl::add(const ExchangeCost& cost) {
  stats_.bytes_sent += cost.bytes;
  stats_.bytes_between_nodes += cost.bytes_between_nodes;
  stats_.seconds_exchanging += cost.seconds;
}

// A failure in the background surfaces in the next call, not only where the result is due.
void LocalUpdateEngine::Impl::notice_failures() const {
  for (const auto& member : members_) {
    if (member->under_way && member->work.is_completed()) member->work.wait();
  }
}

}  // namespace tutti
