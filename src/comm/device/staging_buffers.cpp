#include "comm/device/staging_buffers.h"

#include <c10/core/CPUAllocator.h>

#include <utility>

#include "device/host_copy.h"
#include "device/pin_host_memory.h"

namespace tutti::comm {
namespace {

constexpr auto longest_wait_for_copies = std::chrono::seconds(5);

/// False for memory with a deleter of its own, such as memory that processes share.
bool is_from_allocator(const at::Tensor& host) {
  return host.storage().data_ptr().get_deleter() == c10::GetCPUAllocator()->raw_deleter();
}

}  // namespace

StagingBuffer::StagingBuffer(const at::Tensor& device_memory, at::Tensor host)
    : device_storage_(device_memory.storage().getWeakStorageImpl()),
      begin_(static_cast<const std::byte*>(device_memory.const_data_ptr())),
      bytes_(device_memory.nbytes()),
      host_(std::move(host)) {
  if (bytes_ > 0 && !is_from_allocator(host_)) {
    registration_ = devices::pin_host_memory(host_.data_ptr(), bytes_);
    pinned_ = registration_ ? host_ : devices::pinned_like(device_memory);
  } else {
    pinned_ = host_ = devices::pinned_like(device_memory);
  }
}

StagingBuffer::~StagingBuffer() {
  if (!registration_) return;  // the allocator of pinned memory knows the copies
  const auto deadline = std::chrono::steady_clock::now() + longest_wait_for_copies;
  for (const auto& copy : {last_copy_to_host_, last_copy_back_}) {
    if (!copy || copy->wait_until(deadline, [] { return false; })) continue;
    // The device has stopped and may continue: the memory must stay where it is.
    (void)new std::pair(std::move(host_), std::move(registration_));
    return;
  }
}

std::optional<std::int64_t> StagingBuffer::offset_of(const at::Tensor& flat) const {
  const auto* const data = static_cast<const std::byte*>(flat.const_data_ptr());
  if (data < begin_ || data + flat.nbytes() > begin_ + bytes_ || is_expired()) return std::nullopt;
  return data - begin_;
}

EventPointer StagingBuffer::last_copy_back() const {
  const std::lock_guard lock(mutex_);
  return last_copy_back_;
}

void StagingBuffer::set_last_copy_back(EventPointer event) {
  const std::lock_guard lock(mutex_);
  last_copy_back_ = std::move(event);
}

void StagingBuffer::set_last_copy_to_host(EventPointer event) {
  const std::lock_guard lock(mutex_);
  last_copy_to_host_ = std::move(event);
}

void StagingBuffers::add(const at::Tensor& device_memory, at::Tensor host) {
  auto buffer = std::make_shared<StagingBuffer>(device_memory, std::move(host));
  const std::lock_guard lock(mutex_);
  std::erase_if(buffers_, [](const auto& one) { return one->is_expired(); });
  buffers_.push_back(std::move(buffer));
}

StagingSlice StagingBuffers::slice_of(const at::Tensor& flat) {
  const auto slice = [&](const at::Tensor& whole, std::int64_t offset) {
    return whole.narrow(0, offset, static_cast<std::int64_t>(flat.nbytes()))
        .view(flat.scalar_type())
        .view(flat.sizes());
  };
  const std::lock_guard lock(mutex_);
  for (const auto& buffer : buffers_) {
    if (const auto offset = buffer->offset_of(flat)) {
      return {.buffer = buffer, .pinned = slice(buffer->pinned(), *offset), .host = slice(buffer->host(), *offset)};
    }
  }
  const at::Tensor pinned = devices::pinned_like(flat);
  return {.buffer = nullptr, .pinned = pinned, .host = pinned};
}

}  // namespace tutti::comm
