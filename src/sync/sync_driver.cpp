#include "sync/sync_driver.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tutti::sync {

namespace {

/// A program that holds views of gradients in this many synchronizations is expected to hold them always.
constexpr int max_syncs_to_learn_order = 20;

}  // namespace

SyncDriver::SyncDriver(GradientStore& store, const ReducerOptions& options, const Communicator& communicator)
    : store_(store), options_(options), communicator_(communicator) {
  if (options.buckets.reorder && store.bucket_count() > 1) syncs_left_to_learn_order_ = max_syncs_to_learn_order;
}

void SyncDriver::refuse(std::string reason) {
  state_ = next_state(state_, SyncEvent::refuse);
  refusal_ = std::move(reason);
}

void SyncDriver::end() {
  state_ = next_state(state_, SyncEvent::end);
  sync_.reset();
  store_.abandon_sync();
}

void SyncDriver::open(SyncHeader header) {
  // Must precede the construction of GradientSync, which holds buckets.
  can_rebuild_buckets_ = is_learning_order() && store_.can_rebuild_buckets();
  header.seconds_waited = last_wait_seconds_;
  may_be_unreached_ = header.joined != 0;
  sync_ = std::make_unique<GradientSync>(communicator_, header, options_.detect_overflow);
  state_ = next_state(state_, SyncEvent::open);
}

void SyncDriver::prepare_write(int parameter) {
  const auto bucket = store_.bucket_of(parameter);
  if (!sync_ || !bucket || *bucket >= sync_->buckets_started()) return store_.to_local_share(parameter);
  if (store_.written_in_flight(*bucket)) return;
  sync_->wait_for_bucket(*bucket);
  store_.to_local_share_in_flight(*bucket, sync_->plan().total_weight);
}

void SyncDriver::start_buckets(std::size_t end) {
  for (std::size_t bucket = sync_->buckets_started(); bucket < end; ++bucket) {
    // The sums of an aborted synchronization are discarded, and invalid gradients may be the reason of the abort.
    const at::Tensor& tensor = is_aborted() ? store_.discard_bucket(bucket) : store_.fill_bucket(bucket);
    sync_->start_bucket_all_reduce(tensor, options_.gradient_codec);
  }
}

bool SyncDriver::is_empty() {
  sync_->wait_for_headers();
  return sync_->plan().empty;
}

void SyncDriver::close(const std::string& abort_reason, std::span<const int> order) {
  // The other ranks may send their trailers only.
  if (is_aborted() && may_be_unreached_ && is_empty())
    return send_trailer(aborted_trailer(abort_reason), std::vector<bool>(store_.slot_count()));
  start_buckets(store_.bucket_count());
  // Before any starts, so that close() can be called again with is_aborted() after an exception.
  std::vector<at::Tensor> rows;
  for (int i = 0; i < store_.sparse_count(); ++i) rows.push_back(is_aborted() ? at::Tensor() : store_.fill_rows(i));
  for (int i = 0; i < store_.sparse_count(); ++i) sync_->start_rows(rows[i], store_.sparse_parameter(i));
  const std::vector<bool> used = store_.take_used();
  SyncTrailer trailer = is_aborted() ? aborted_trailer(abort_reason) : SyncTrailer{};
  trailer.needs_another_sync = store_.any_written_in_flight();
  if (!is_learning_order()) return send_trailer(trailer, used);
  // The order is sent with the trailer, not in a separate collective: ranks reach their reducers in different orders,
  // so a collective here could wait for a rank that waits for this rank in another reducer.
  trailer.can_rebuild_buckets = can_rebuild_buckets_;
  std::vector<int> numbers(order.begin(), order.end());
  numbers.resize(used.size(), -1);
  send_trailer(trailer, used, numbers);
}

void SyncDriver::close_empty() {
  store_.drop_micro_batches();
  send_trailer({}, std::vector<bool>(store_.slot_count()));
}

void SyncDriver::send_trailer(const SyncTrailer& trailer, const std::vector<bool>& used, std::span<const int> numbers) {
  sync_->close(trailer, used, numbers);
  state_ = next_state(state_, SyncEvent::close);
}

SyncResult SyncDriver::wait() {
  const auto start = std::chrono::steady_clock::now();
  SyncResult result = sync_->wait();
  result.seconds_waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!is_aborted()) last_wait_seconds_ = result.seconds_waited;
  sync_.reset();
  state_ = next_state(state_, SyncEvent::end);
  return result;
}

void SyncDriver::apply(const SyncResult& result) {
  overflowed_ = result.overflowed;
  store_.set_mean(result.plan.total_weight, result.summed, result.used, result.rows);
}

// A single rank, also during local steps, has no communication to overlap.
bool SyncDriver::is_learning_order() const {
  return syncs_left_to_learn_order_ > 0 && communicator_.size() > 1;
}

void SyncDriver::learn_order(const SyncResult& result) {
  if (result.plan.empty || !is_learning_order()) return;
  --syncs_left_to_learn_order_;
  // A synchronization in step() has no order.
  const bool ordered = std::ranges::any_of(result.numbers, [](int parameter) { return parameter >= 0; });
  if (!ordered || !all_can_rebuild_buckets(result.trailers)) return;
  syncs_left_to_learn_order_ = 0;
  store_.rebuild_buckets(options_.buckets, result.numbers);
}

}  // namespace tutti::sync
