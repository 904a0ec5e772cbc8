// The reducer's part that exchanges gradients.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "sync/gradient_buffer.h"
#include "sync/parameter_watch.h"
#include "sync/partial_sums.h"
#include "sync/reducer_impl.h"
#include "sync/round.h"
#include "sync/sparse_gradients.h"
#include "tutti/core/error.h"

namespace tutti {

void Reducer::Impl::open_round() {
  // Before the round itself holds buckets.
  may_move_ = learns_order() && !buffer_->shared();
  life_.begin_round(kept_gradient());
  const Window& window = life_.window();
  channel_.note_step(window.steps());
  round_ = std::make_unique<sync::Round>(
      channel_,
      sync::RoundOpening{.step = window.steps(),
                         .passes = window.passes() + (brings_foreign_gradients() || life_.zeros_may_differ() ? 1 : 0),
                         .weighting = window.weighting(),
                         .weight = window.weight(),
                         .kept = life_.began_on_kept() ? 1 : 0,
                         .over = life_.over() ? 1 : 0,
                         .loss_scale = loss_scale_,
                         .lengths = window.lengths(),
                         .parameters = options_.check_replicas ? sync::combine(watch_->hashes()) : 0,
                         .waited = waited_},
      options_.detect_overflow);
}

void Reducer::Impl::start_ready_buckets() {
  if (!round_) open_round();
  for (std::size_t next = round_->buckets_started(); next < buckets_.size() && buckets_[next].waiting == 0;
       next = round_->buckets_started()) {
    start_bucket(static_cast<int>(next));
  }
}

void Reducer::Impl::start_bucket(int bucket) {
  // An abandoned round's sums are thrown away, and gradients that do not fit may be why it is abandoned.
  if (life_.is(sync::Gradients::abandoned)) {
    // But what the program holds may lie where they are made.
    for (const int parameter : buffer_->plan().buckets[bucket].parameters) buffer_->release(parameter);
  } else {
    fill_bucket(bucket);
  }
  round_->start_bucket(buffer_->bucket(bucket), options_.comm_hook);
}

void Reducer::Impl::fill_bucket(int bucket) {
  if (std::exchange(buckets_[bucket].averaged, false)) make_share(bucket, last_total_weight_);
  for (const int parameter : buffer_->plan().buckets[bucket].parameters) {
    if (!parameters_[parameter].tensor.grad().defined()) {
      buffer_->release(parameter);
      buffer_->slot(parameter).zero_();
    } else {
      adopt(parameter);
    }
  }
  partial_->add_to(buffer_->bucket(bucket), bucket);
}

void Reducer::Impl::start_all_buckets_and_close() {
  if (!round_) open_round();
  const bool abandoned = life_.is(sync::Gradients::abandoned);
  for (std::size_t bucket = round_->buckets_started(); bucket < buckets_.size(); ++bucket) {
    start_bucket(static_cast<int>(bucket));
  }
  for (int i = 0; i < sparse_->count(); ++i) {
    if (!abandoned) {
      sparse_->arrived(i);
      sparse_->make_share(i, share());
    }
    round_->start_rows(abandoned ? at::Tensor() : sparse_->gradient(i), sparse_->parameter(i));
  }
  std::vector<bool> used(count());
  for (int i = 0; i < count(); ++i) used[i] = parameters_[i].tensor.grad().defined() || partial_->used(i);
  partial_->clear();
  sync::RoundClosing closing = abandoned ? sync::abandoned_closing(life_.why()) : sync::RoundClosing{};
  for (const BucketState& bucket : buckets_) closing.again = closing.again || bucket.late;
  if (!learns_order()) return round_->close(closing, used);
  // Ranks meet their reducers in different orders, so that the order travels with the round: an exchange of its own
  // after it could wait for a rank that waits for this one in another reducer.
  closing.may_move = may_move_;
  std::vector<int> order = pass_.order;
  order.resize(count(), -1);
  round_->close(closing, used, order);
}

void Reducer::Impl::run_round() {
  refused_.reset();
  if (!round_) open_round();
  // What a step has used is equal on all ranks: its mean is what it is, whatever weighed in its window.
  if (life_.over()) last_total_weight_ = channel_.size() * life_.weight_of_kept();
  if (life_.window().passes() == 0 && !brings_foreign_gradients() && !life_.zeros_may_differ()) {
    // If nobody has anything there is nothing to sum; whoever has something started its buckets without asking.
    try {
      round_->wait_for_opening();
    } catch (const std::exception& error) {
      lose(error.what());
      throw;
    }
    if (round_->terms().empty) {
      round_->close({}, std::vector<bool>(count()));
      finish_round();
      return;
    }
  }
  if (!round_->closed()) start_all_buckets_and_close();
  finish_round();
}

void Reducer::Impl::finish_round() {
  const auto start = std::chrono::steady_clock::now();
  try {
    round_->wait();
  } catch (const std::exception& error) {
    lose(error.what());
    throw;
  }
  waited_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  stats_.seconds_waiting += waited_;
  ++stats_.rounds;
  stats_.bytes_sent += round_->bytes_sent();
  judge_round();
}

void Reducer::Impl::judge_round() {
  const std::unique_ptr<sync::Round> round = std::move(round_);
  const sync::RoundTerms& terms = round->terms();
  if (const auto why = judge(round->closings())) {
    std::vector<int> ranks;
    for (int rank = 0; rank < channel_.size(); ++rank) {
      if (round->closings()[rank].abandoned) ranks.push_back(rank);
    }
    lose(*why);
    throw PeerFailure(whose() + *why, ranks);
  }
  if (terms.divergence) {
    lose(*terms.divergence);
    throw Divergence(whose() + *terms.divergence);
  }
  if (terms.drifted) {
    const std::string why = watch_->describe_drift(channel_);
    lose(why);
    throw Divergence(why);
  }

  std::vector<WindowLengths> lengths;
  for (const sync::RoundOpening& opening : round->openings()) lengths.push_back(opening.lengths);
  automatic_.learn(lengths);
  last_total_weight_ = terms.total_weight;
  overflowed_ = round->overflowed();
  for (std::size_t i = 0; i < round->buckets_started(); ++i)
    buckets_[i].averaged = !std::exchange(buckets_[i].late, false);
  for (int i = 0; i < count(); ++i) {
    if (round->used_by_any()[i] && !parameters_[i].tensor.grad().defined()) buffer_->attach(i);
    states_[i].attached = buffer_->attached(i);
    states_[i].version = buffer_->slot(i)._version();
  }
  for (std::size_t i = 0; i < round->rows().size(); ++i) {
    sparse_->synchronized(static_cast<int>(i), round->rows()[i]);
  }
  life_.end_round(terms.weighting, terms.empty, terms.over);
  stats_ += SyncStats{.seconds_late = sync::lateness(round->openings())};
  if (needs_another(round->closings())) return run_round();
  if (!terms.empty && learns_order()) reorder_buckets(*round);
}

// Alone, also while ranks take local steps, there is nothing to hide.
bool Reducer::Impl::learns_order() const {
  return rounds_to_learn_order_ > 0 && channel_.size() > 1;
}

// Every rank comes here after the same rounds with the same closings. A round that step() had to run tells no order.
void Reducer::Impl::reorder_buckets(const sync::Round& round) {
  --rounds_to_learn_order_;
  const std::span<const int> order = round.numbers_of_first();
  const bool ordered = std::ranges::any_of(order, [](int parameter) { return parameter >= 0; });
  if (!ordered || !sync::may_move(round.closings())) return;
  rounds_to_learn_order_ = 0;
  const at::NoGradGuard no_grad;
  buffer_->replan(plan_buckets(buffer_->sizes(), options_.buckets, order));
  // All of them have just been averaged.
  buckets_.assign(buffer_->plan().buckets.size(), {.averaged = true});
  for (int i = 0; i < count(); ++i) states_[i].version = buffer_->slot(i)._version();
}

void Reducer::Impl::make_share(int bucket, double total_weight) {
  // The mean is equal on all ranks: this rank's share of the weighted sum that it came from is 1 / size of it.
  const double factor = total_weight * loss_scale_ / channel_.size();
  if (factor == 1) return;
  // A mean that the user replaced by a tensor of his own is one still.
  for (const int parameter : buffer_->plan().buckets[bucket].parameters) adopt(parameter);
  buffer_->bucket(bucket).mul_(factor);
}

void Reducer::Impl::adopt(int parameter) {
  try {
    if (buffer_->adopt(parameter) && states_[parameter].attached) ++stats_.gradients_moved;
  } catch (const UsageError& error) {
    throw UsageError("parameter " + quoted(parameters_[parameter]) + ": " + error.what());
  }
}

void Reducer::Impl::settle() {
  close_dangling_pass();
  if (!life_.is(sync::Gradients::abandoned) || !owes_round_) return;
  // The exception was this rank's own, and the program has seen it: the others learn of it here.
  try {
    if (!round_ || !round_->closed()) start_all_buckets_and_close();
    round_->wait();
  } catch (const std::exception& error) {
    lose(error.what());
    throw;
  }
  lose("its others were told");
  forget_window();
}

void Reducer::Impl::lose(const std::string& why) {
  life_.lose(why);
  round_.reset();
  owes_round_ = false;
  for (BucketState& bucket : buckets_) bucket.late = false;
}

}  // namespace tutti
