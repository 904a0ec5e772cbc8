// The public methods of Reducer. Each locks the mutex, except accessors of values that only the calling thread changes.
#include "tutti/detail/sync/reducer.h"

#include <utility>

#include "sync/reducer_impl.h"

namespace tutti {

Reducer::Reducer(std::vector<NamedParameter> parameters, Communicator communicator, const ReducerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(communicator), options)) {}
Reducer::~Reducer() = default;

void Reducer::enter_accumulate(const AccumulationStep& step) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->enter_accumulate(step);
}
void Reducer::leave_accumulate(bool unwinding) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->leave_accumulate(unwinding);
}
bool Reducer::in_accumulate() const {
  return impl_->window_state_.scope().has_value();
}
std::int64_t Reducer::ended_windows() const {
  const std::lock_guard lock(impl_->mutex_);
  return impl_->ended_windows_;
}
bool Reducer::has_unused_passes() const {
  const std::lock_guard lock(impl_->mutex_);
  return impl_->tracker_.is_open() || !impl_->window_state_.is_idle();
}
bool Reducer::last_scope_has_no_pass() const {
  const std::lock_guard lock(impl_->mutex_);
  return !impl_->tracker_.is_open() && impl_->window_state_.last_scope_has_no_pass();
}
void Reducer::enter_no_sync() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->decision_.enter_no_sync();
}
void Reducer::leave_no_sync() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->decision_.leave_no_sync();
}
void Reducer::trigger_sync_in_backward() {
  const std::lock_guard lock(impl_->mutex_);
  if (impl_->options_.reproducible) {
    throw UsageError(impl_->parameters_.model_prefix() +
                     "trigger_sync_in_backward(): a reproducible sum is computed at the window's end");
  }
  impl_->decision_.trigger();
}
void Reducer::add_scope_weight() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->parameters_.with_model_prefix([this] { impl_->window_state_.add_scope_weight(); });
}
void Reducer::on_backward_error() noexcept {
  const std::lock_guard lock(impl_->mutex_);
  impl_->tracker_.fail_pass();
}
void Reducer::set_local(bool local) {
  const std::lock_guard lock(impl_->mutex_);
  if (local != impl_->local_) impl_->set_local(local);
}
void Reducer::require_between_steps() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->require_between_steps();
}
void Reducer::refuse_passes(const std::string& why) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->options_.before_pass = [why] { throw UsageError(why); };
}
void Reducer::discard_unused_passes() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->discard_unused_passes();
}
bool Reducer::local() const {
  return impl_->local_;
}
std::int64_t Reducer::steps() const {
  return impl_->window_state_.window().steps();
}
void Reducer::set_steps(std::int64_t steps) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->window_state_.set_steps(steps);
}
void Reducer::set_parts(const std::vector<std::shared_ptr<Reducer>>& parts) {
  std::vector<sync::BackwardTracker*> trackers;
  if (parts.size() > 1) {
    for (const auto& part : parts) trackers.push_back(&part->impl_->tracker_);
  }
  const std::lock_guard lock(impl_->mutex_);
  impl_->tracker_.set_parts(trackers);
}
void Reducer::set_check_replicas(bool check) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->set_check_replicas(check);
}
void Reducer::compare_also(std::vector<NamedParameter> parameters) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->compare_also(std::move(parameters));
}
void Reducer::set_step_options(StepOptions options) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->comparison_.set_step_options(std::move(options));
}
void Reducer::note_clipping(const char* name, double limit) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->comparison_.on_clip(name, limit);
}
bool Reducer::at_window_end() const {
  const auto& scope = impl_->window_state_.scope();
  return !scope || scope->syncs;
}
void Reducer::check_left_out_step() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->check_left_out_step();
}
void Reducer::synchronize() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->synchronize();
}
double Reducer::mean_over_ranks(double value) {
  const std::lock_guard lock(impl_->mutex_);
  return impl_->mean_over_ranks(value);
}
void Reducer::prepare_step() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->prepare_step();
}
void Reducer::warn_before_last_scope(const char* call, const char* effect) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->warn_before_last_scope(call, effect);
}
void Reducer::set_loss_scale(double scale) {
  const std::lock_guard lock(impl_->mutex_);
  if (scale != impl_->store_.loss_scale()) impl_->set_loss_scale(scale);
}
bool Reducer::overflowed() const {
  return impl_->driver_.overflowed();
}
void Reducer::on_optimizer_step() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->on_optimizer_step();
}
void Reducer::clear(bool set_to_none) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->clear(set_to_none);
}
void Reducer::discard_accumulation() {
  const std::lock_guard lock(impl_->mutex_);
  impl_->discard_accumulation();
}
StateDict Reducer::state_dict() const {
  const std::lock_guard lock(impl_->mutex_);
  return impl_->state_dict();
}
void Reducer::load_state_dict(const StateDict& state) {
  const std::lock_guard lock(impl_->mutex_);
  impl_->load_state_dict(state);
}
const std::vector<NamedParameter>& Reducer::parameters() const {
  return impl_->parameters_.trained;
}
SyncStats Reducer::stats() const {
  const std::lock_guard lock(impl_->mutex_);
  SyncStats stats = impl_->stats_;
  stats.gradients_copied = impl_->store_.copied();
  return stats;
}

}  // namespace tutti
