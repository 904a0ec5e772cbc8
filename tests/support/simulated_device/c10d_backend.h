#pragma once
// A c10d backend for `sim` with NCCL's habits: a collective is queued on a stream of the backend's own behind what the
// caller's current stream was given, Work::wait() makes the current stream wait and not the host, abort() ends what is
// under way. Ranks are threads of one process, each with a device of its own; they add up on the CPU.
#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {

/// Where the ranks of a group meet.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}

  /// Blocks until all ranks are here with their `mine`; then each holds the sum, added in the order of ranks.
  void sum(int rank, at::Tensor mine) {
    const at::NoGradGuard no_grad;
    std::unique_lock lock(mutex_);
    if (aborted_) throw std::runtime_error("the collective was aborted");
    parts_[rank] = mine;
    const auto round = round_;
    if (static_cast<int>(parts_.size()) == size_) {
      at::Tensor all = parts_.at(0).clone();
      for (int other = 1; other < size_; ++other) all.add_(parts_.at(other));
      for (auto& [other, part] : parts_) part.copy_(all);
      parts_.clear();
      ++round_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return round_ != round || aborted_; });
    if (round_ == round) throw std::runtime_error("the collective was aborted");
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, at::Tensor> parts_;
  std::uint64_t round_ = 0;
  bool aborted_ = false;
};

/// The meetings of a job's groups, by name.
class Meetings {
 public:
  std::shared_ptr<Meeting> of(const std::string& group, int size) {
    const std::lock_guard lock(mutex_);
    auto& meeting = all_[group];
    if (!meeting) meeting = std::make_shared<Meeting>(size);
    return meeting;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Meeting>> all_;
};

void* as_seen_by_kernels(const void* device_pointer);

class Collective final : public c10d::Work {
 public:
  Collective(std::vector<at::Tensor> tensors, const c10::Stream& stream)
      : device_(tensors.at(0).device()), done_(type), tensors_(std::move(tensors)) {
    done_.record(stream);
    const c10::StreamGuard guard(stream);
    future_ = c10::make_intrusive<at::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                      std::vector<c10::Device>{device_});
    future_->markCompleted(at::IValue(tensors_));
  }
  bool wait(std::chrono::milliseconds = kNoTimeout) override {
    done_.block(current_stream(device_.index()));
    tensors_.clear();
    return true;
  }
  bool isCompleted() override { return done_.query(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::Device device_;
  c10::Event done_;
  std::vector<at::Tensor> tensors_;  // kept for the other stream until somebody waits, as NCCL's work does
  c10::intrusive_ptr<at::ivalue::Future> future_;
};

class Backend final : public c10d::Backend {
 public:
  Backend(std::shared_ptr<Meeting> meeting, int rank, int size, int device)
      : c10d::Backend(rank, size), meeting_(std::move(meeting)), stream_(pool_stream(device)) {}
  // As ProcessGroupNCCL's: without a shutdown() before, what is under way is lost.
  ~Backend() override {
    if (!ended_) meeting_->abort();
  }
  void shutdown() override {
    wait_for(stream_, "shutdown");
    ended_ = true;
  }
  const std::string getBackendName() const override { return "simccl"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& = {}) override {
    const at::Tensor& flat = tensors.at(0);
    TORCH_CHECK(flat.is_privateuseone() && flat.is_contiguous(), "simccl: wants a dense tensor of sim");
    c10::Event ready(type);
    ready.record(current_stream(flat.device().index()));
    ready.block(stream_);
    const at::Tensor alias =
        at::from_blob(as_seen_by_kernels(flat.const_data_ptr()), flat.sizes(), at::TensorOptions(flat.scalar_type()));
    launch(stream_, [meeting = meeting_, rank = getRank(), alias] { meeting->sum(rank, alias); });
    return c10::make_intrusive<Collective>(tensors, stream_);
  }
  void abort() override { meeting_->abort(); }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }

 private:
  std::shared_ptr<Meeting> meeting_;
  c10::Stream stream_;
  bool ended_ = false;
};

}  // namespace tutti::test::simulated
