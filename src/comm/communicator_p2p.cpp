// The point-to-point messages of a Communicator.

#include <utility>

#include "comm/device_call.h"
#include "comm/operation_queue.h"
#include "comm/tensor_checks.h"
#include "comm/transport/tcp/group_endpoint.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using comm::CallTensors;
using Kind = comm::DeviceStreams::Kind;

void require_peer(const char* what, const Communicator& communicator, int peer) {
  const std::string subject = std::string(what) + ": rank " + std::to_string(peer);
  if (peer < 0 || peer >= communicator.size()) {
    throw UsageError(subject + " is not a rank of this group of " + std::to_string(communicator.size()) + ".");
  }
  if (peer == communicator.rank()) throw UsageError(subject + " is the calling rank itself.");
}

void require_tag(const char* what, int tag) {
  if (tag >= 0) return;
  throw UsageError(std::string(what) + ": the tag must not be negative, but is " + std::to_string(tag) + ".");
}

Work post_receive(comm::OperationQueue& queue, const at::Tensor& tensor, int peer, int tag,
                  std::function<void(int)> on_source, const CallOptions& call) {
  CallTensors tensors("receive", queue.backend().traits(), /*has_device_form=*/false);
  const auto flat = tensors.output(tensor);
  const auto on_completed = [flat, on_source = std::move(on_source)](int source) {
    flat.write_back();
    if (on_source) on_source(source);
  };
  return Work(queue.receive(flat.memory(), peer, tag, call, on_completed, "receive",
                            tensors.start(queue.device_streams(), Kind::receives)));
}

}  // namespace

Work Communicator::send(at::Tensor tensor, int peer, int tag, const CallOptions& call) const {
  require_peer("send", *this, peer);
  require_tag("send", tag);
  CallTensors tensors("send", queue_->backend().traits(), /*has_device_form=*/false);
  const auto flat = tensors.input(tensor);
  return Work(
      queue_->send(flat.memory(), peer, tag, call, "send", tensors.start(queue_->device_streams(), Kind::sends)));
}

Work Communicator::receive(at::Tensor tensor, int peer, int tag, const CallOptions& call) const {
  require_peer("receive", *this, peer);
  require_tag("receive", tag);
  return post_receive(*queue_, tensor, peer, tag, nullptr, call);
}

Work Communicator::receive_from_any(at::Tensor tensor, int tag, std::function<void(int)> on_source,
                                    const CallOptions& call) const {
  require_tag("receive", tag);
  if (size() == 1) throw UsageError("receive: there is no other rank in this group.");
  return post_receive(*queue_, tensor, comm::any_source, tag, std::move(on_source), call);
}

void Communicator::monitored_barrier(bool wait_for_all, const CallOptions& call) const {
  queue_->monitored_barrier(wait_for_all, call);
}

void Communicator::abort(const std::string& reason) const {
  queue_->abort(reason);
}

}  // namespace tutti
