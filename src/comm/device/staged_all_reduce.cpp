#include "comm/device/staged_all_reduce.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <cstring>
#include <utility>

#include "comm/device/await_device.h"

namespace tutti::comm {
namespace {

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  if (!to.is_same(from) && to.nbytes() > 0) std::memcpy(to.data_ptr(), from.const_data_ptr(), to.nbytes());
}

}  // namespace

void StagingStreams::record_use(const at::Tensor& tensor) const {
  to_host_.record_use(tensor);
  to_device_.record_use(tensor);
}

EventPointer StagingStreams::run(const devices::SideStream& stream, const std::function<void()>& copy) {
  const std::lock_guard lock(mutex_);
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  stream.run(copy);
  return std::make_shared<const devices::StreamEvent>(stream.record_event());
}

StagedAllReduce::StagedAllReduce(std::shared_ptr<Backend> host, Operation operation, at::Tensor flat,
                                 StagingSlice staging, std::shared_ptr<const WireCodec> codec,
                                 std::shared_ptr<StagingStreams> streams,
                                 std::shared_ptr<const std::atomic<bool>> is_closed)
    : host_(std::move(host)),
      operation_(std::move(operation)),
      flat_(std::move(flat)),
      staging_(std::move(staging)),
      codec_(std::move(codec)),
      streams_(std::move(streams)),
      is_closed_(std::move(is_closed)) {
  const auto computed = devices::StreamEvent::on_current_stream(flat_.device());
  const EventPointer copied_back = staging_.buffer ? staging_.buffer->last_copy_back() : nullptr;
  arrived_ = streams_->copy_to_host([&] {
    computed.block_current_stream();
    if (copied_back) copied_back->block_current_stream();
    staging_.pinned.copy_(flat_, /*non_blocking=*/true);
  });
  if (staging_.buffer) {
    staging_.buffer->set_last_copy_to_host(arrived_);
  } else {
    streams_->record_use(flat_);
  }
}

void StagedAllReduce::finish_reduce_scatter(double scale) {
  await_device(*arrived_, flat_.device(), host_->rank(), operation_, [this] { return is_closed_->load(); });
  copy_bytes(staging_.host, staging_.pinned);
  sum_ = host_->start_all_reduce(operation_, staging_.host, codec_);
  sum_->finish_reduce_scatter(scale);
}

void StagedAllReduce::wait() {
  sum_->wait();
  copy_bytes(staging_.pinned, staging_.host);
  completed_ = streams_->copy_to_device([&] { flat_.copy_(staging_.pinned, /*non_blocking=*/true); });
  if (staging_.buffer) staging_.buffer->set_last_copy_back(completed_);
}

}  // namespace tutti::comm
