#include "comm/messages/scratch.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace tutti::comm {
namespace {

constexpr std::align_val_t alignment{64};

}  // namespace

struct Scratch::Buffer {
  explicit Buffer(std::size_t bytes)
      : memory(static_cast<std::byte*>(::operator new(bytes, alignment)), &release), size(bytes) {}
  static void release(std::byte* memory) { ::operator delete(memory, alignment); }

  std::unique_ptr<std::byte, void (*)(std::byte*)> memory;
  std::size_t size;
  std::atomic<bool> taken = false;
};

Block Scratch::take(std::size_t bytes) {
  if (bytes == 0) return {};
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Buffer> best;
  for (const auto& buffer : buffers_) {
    const bool fits = !buffer->taken && buffer->size >= bytes;
    if (fits && (!best || buffer->size < best->size)) best = buffer;
  }
  if (!best) {
    // Free buffers that were too small for this one would otherwise pile up while sizes grow.
    std::erase_if(buffers_, [&](const auto& buffer) { return !buffer->taken && buffer->size < bytes; });
    best = buffers_.emplace_back(std::make_shared<Buffer>(bytes));
  }
  best->taken = true;
  auto* data = best->memory.get();
  const std::shared_ptr<const void> owner(data, [best](const void*) { best->taken = false; });
  return {data, bytes, owner};
}

}  // namespace tutti::comm
