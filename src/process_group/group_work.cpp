#include "process_group/group_work.h"

#include <algorithm>
#include <utility>

#include "comm/backend/operation.h"
#include "device/devices.h"
#include "tutti/core/error.h"

namespace tutti::process_group {
namespace {

/// The device of the first tensor that is on one.
std::optional<c10::Device> device_of(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (devices::is_accelerator(tensor.device())) return tensor.device();
  }
  return std::nullopt;
}

}  // namespace

c10::intrusive_ptr<GroupWork> GroupWork::start(int rank, std::uint64_t number, std::chrono::milliseconds timeout,
                                               const std::vector<at::Tensor>& inputs, Parts parts) {
  auto work = c10::make_intrusive<GroupWork>(rank, number, timeout, inputs, std::move(parts));
  if (work->parts_.works.empty()) work->end(nullptr);
  for (const auto& part : work->parts_.works) {
    part.then([work, part] { work->on_part_completed(part); });
  }
  return work;
}

GroupWork::GroupWork(int rank, std::uint64_t number, std::chrono::milliseconds timeout,
                     const std::vector<at::Tensor>& inputs, Parts parts)
    : c10d::Work(rank, parts.type, ("tutti:" + std::string(parts.what)).c_str(), inputs),
      parts_(std::move(parts)),
      last_step_(parts_.on_completed ? std::make_shared<comm::WorkState>() : nullptr),
      number_(number),
      timeout_(timeout),
      pending_parts_(parts_.works.size()) {
  if (const auto device = device_of(parts_.outputs)) side_stream_.emplace(*device);
}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  const bool without_deadline = timeout <= std::chrono::milliseconds::zero();
  if (without_deadline) {
    for (const auto& part : parts_.works) {
      try {
        part.wait();  // reports this thread to the deadlock detector as waiting
      } catch (const std::exception&) {
        // Thrown below: the failure of the whole work may be that of another part.
      }
    }
  }
  {
    std::unique_lock lock(mutex_);
    const auto ended = [&] { return completed_; };
    if (without_deadline) {
      cv_.wait(lock, ended);
    } else if (!cv_.wait_for(lock, std::min(timeout, comm::longest_timeout), ended)) {
      throw TimeoutError(std::string(parts_.what) + ": rank " + std::to_string(rank_) + " waited for " +
                             std::to_string(timeout.count()) +
                             " ms, and the operation did not complete. It stays in flight until its own deadline.",
                         {});
    }
    if (exception_) std::rethrow_exception(exception_);
  }
  synchronize();
  return true;
}

void GroupWork::synchronize() {
  for (const auto& part : parts_.works) part.wait();
  if (completed_event_) completed_event_->block_current_stream();
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  const std::lock_guard lock(mutex_);
  if (!future_) {
    std::vector<c10::Device> devices;
    if (const auto device = device_of(parts_.outputs)) devices.push_back(*device);
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    if (is_outcome_known_) complete_future(*future_);  // has no callbacks yet, so none runs under the lock
  }
  return future_;
}

int GroupWork::sourceRank() const {
  if (!parts_.source) throw UsageError(std::string(parts_.what) + ": only a receive has a source.");
  return *parts_.source;
}

std::vector<tutti::Work> GroupWork::parts() const {
  auto parts = parts_.works;
  if (last_step_) parts.emplace_back(last_step_);
  return parts;
}

void GroupWork::on_part_completed(const tutti::Work& part) {
  if (const auto failure = part.exception()) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
  }
  if (--pending_parts_ > 0) return;
  std::exception_ptr failure = failure_;
  if (!failure && parts_.on_completed) {
    try {
      run_after_parts(parts_.on_completed);
      if (side_stream_) completed_event_ = std::make_shared<devices::StreamEvent>(side_stream_->record_event());
    } catch (...) {
      failure = std::current_exception();
    }
  }
  end(std::move(failure));
}

void GroupWork::end(std::exception_ptr failure) {
  parts_.on_completed = nullptr;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    is_outcome_known_ = true;
    future = future_;
  }
  if (future) complete_future(*future);
  finish(failure_);
  if (!last_step_) return;
  if (completed_event_) last_step_->set_on_waited([event = completed_event_] { event->block_current_stream(); });
  last_step_->end(failure_);
}

void GroupWork::complete_future(c10::ivalue::Future& future) {
  if (failure_) {
    future.setError(failure_);
  } else {
    run_after_parts([&] { future.markCompleted(c10::IValue(parts_.outputs)); });
  }
}

void GroupWork::run_after_parts(const std::function<void()>& step) {
  if (!side_stream_) return step();
  side_stream_->run([&] {
    for (const auto& part : parts_.works) part.wait();
    if (completed_event_) completed_event_->block_current_stream();
    step();
  });
  for (const at::Tensor& output : parts_.outputs) side_stream_->record_use(output);
}

}  // namespace tutti::process_group
