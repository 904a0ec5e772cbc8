// Forwards Reducer's public methods to its implementation.
#include "tutti/detail/sync/reducer.h"

#include <utility>

#include "sync/reducer_impl.h"

namespace tutti {

Reducer::Reducer(std::vector<NamedParameter> parameters, Communicator communicator, const ReducerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(communicator), options)) {}
Reducer::~Reducer() = default;

void Reducer::enter_accumulate(const AccumulationStep& step) {
  impl_->enter_accumulate(step);
}
void Reducer::leave_accumulate(bool unwinding) {
  impl_->leave_accumulate(unwinding);
}
bool Reducer::in_accumulate() const {
  return impl_->in_accumulate();
}
bool Reducer::is_idle() const {
  return impl_->is_idle();
}
void Reducer::enter_no_sync() {
  impl_->enter_no_sync();
}
void Reducer::leave_no_sync() {
  impl_->leave_no_sync();
}
void Reducer::trigger_sync_in_backward() {
  impl_->trigger_sync_in_backward();
}
void Reducer::add_scope_weight() {
  impl_->add_scope_weight();
}
void Reducer::on_backward_error() noexcept {
  impl_->on_backward_error();
}
void Reducer::set_local(bool local) {
  impl_->set_local(local);
}
bool Reducer::local() const {
  return impl_->local();
}
std::int64_t Reducer::steps() const {
  return impl_->steps();
}
void Reducer::set_check_replicas(bool check) {
  impl_->set_check_replicas(check);
}
bool Reducer::at_window_end() const {
  return impl_->at_window_end();
}
void Reducer::synchronize() {
  impl_->synchronize();
}
double Reducer::mean_over_ranks(double value) {
  return impl_->mean_over_ranks(value);
}
void Reducer::prepare_step() {
  impl_->prepare_step();
}
void Reducer::set_loss_scale(double scale) {
  impl_->set_loss_scale(scale);
}
bool Reducer::overflowed() const {
  return impl_->overflowed();
}
void Reducer::on_optimizer_step() {
  impl_->on_optimizer_step();
}
void Reducer::clear(bool set_to_none) {
  impl_->clear(set_to_none);
}
void Reducer::discard_accumulation() {
  impl_->discard_accumulation();
}
StateDict Reducer::state_dict() const {
  return impl_->state_dict();
}
void Reducer::load_state_dict(const StateDict& state) {
  impl_->load_state_dict(state);
}
const std::vector<NamedParameter>& Reducer::parameters() const {
  return impl_->parameters();
}
SyncStats Reducer::stats() const {
  return impl_->stats();
}

}  // namespace tutti
