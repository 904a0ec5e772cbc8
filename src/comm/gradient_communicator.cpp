#include "tutti/detail/comm/gradient_communicator.h"

#include <string>
#include <utility>

#include "comm/operation_queue.h"
#include "comm/tensor_checks.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

void require_supported(const char* what, const Backend& backend, at::Device device) {
  if (backend.traits().supports(device.type())) return;
  throw UsageError(std::string(what) + ": the backend " + backend.traits().name + " supports CPU memory, not " +
                   device.str() + ".");
}

}  // namespace

int GradientCommunicator::size() const {
  return queue_->backend().size();
}

void GradientCommunicator::throw_if_failed() const {
  queue_->throw_if_failed();
}

bool GradientCommunicator::supports_device(at::Device device) const {
  return queue_->backend().traits().supports(device.type());
}

bool GradientCommunicator::sums_in_fixed_order(at::Device device) const {
  const BackendTraits& traits = queue_->backend().traits();
  return supports_device(device) && (size() == 1 || device.is_cpu() || traits.all_devices || traits.fixed_order);
}

at::Tensor GradientCommunicator::allocate(std::int64_t bytes, at::Device device) const {
  if (bytes < 0) throw UsageError("allocate: the size must not be negative, but is " + std::to_string(bytes) + ".");
  require_supported("allocate", queue_->backend(), device);
  return queue_->allocate(bytes, device);
}

std::unique_ptr<PendingAllReduce> GradientCommunicator::start_all_reduce(
    at::Tensor flat, const std::shared_ptr<const WireCodec>& codec) const {
  require_dense("start_all_reduce", flat);
  require_supported("start_all_reduce", queue_->backend(), flat.device());
  require_reducible("start_all_reduce", flat, ReduceOp::sum);
  if (!flat.is_contiguous() || flat.is_conj() || flat.is_neg()) {
    throw UsageError("start_all_reduce: the tensor must be contiguous, without a lazy conj() or negation.");
  }
  queue_->backend().require_summable(flat);
  return queue_->start_all_reduce(flat.detach(), flat.scalar_type() == at::kFloat ? codec : nullptr);
}

std::shared_ptr<QueuedAllReduce> GradientCommunicator::queue_all_reduce(at::Tensor flat,
                                                                        const std::shared_ptr<const WireCodec>& codec,
                                                                        AllReduceCallbacks callbacks) const {
  auto pending = start_all_reduce(std::move(flat), codec);
  auto sum = std::make_shared<QueuedAllReduce>(*this, std::move(pending), std::move(callbacks));
  sum->reduction_ = submit([sum] { sum->pending_->finish_reduce_scatter(sum->callbacks_.scale()); });
  return sum;
}

std::unique_ptr<PendingAllGather> GradientCommunicator::start_small_all_gather(std::span<const std::byte> block) const {
  return queue_->start_small_all_gather(block);
}

std::unique_ptr<PendingAllGatherV> GradientCommunicator::start_all_gather_v(std::vector<std::byte> block) const {
  return queue_->start_all_gather_v(std::move(block));
}

Work GradientCommunicator::submit(std::function<void()> task) const {
  return Work(queue_->submit(std::move(task)));
}

Work QueuedAllReduce::complete() {
  if (!completion_) {
    completion_ = communicator_.submit([sum = shared_from_this()] {
      sum->pending_->wait();
      if (!sum->callbacks_.on_completed) return;
      sum->pending_->block_current_stream();
      sum->callbacks_.on_completed();
    });
  }
  return *completion_;
}

}  // namespace tutti::comm
