#include "comm/algorithms/buffer_pool.h"

#include <atomic>
#include <new>

namespace tutti::comm {
namespace {

constexpr std::align_val_t alignment{64};

}  // namespace

struct BufferPool::Allocation {
  explicit Allocation(std::size_t bytes)
      : memory(static_cast<std::byte*>(::operator new(bytes, alignment)), &release), size(bytes) {}
  static void release(std::byte* memory) { ::operator delete(memory, alignment); }

  std::unique_ptr<std::byte, void (*)(std::byte*)> memory;
  std::size_t size;
  std::atomic<bool> in_use = false;
};

Buffer BufferPool::acquire(std::size_t bytes) {
  if (bytes == 0) return {};
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Allocation> best;
  for (const auto& allocation : allocations_) {
    const bool fits = !allocation->in_use && allocation->size >= bytes;
    if (fits && (!best || allocation->size < best->size)) best = allocation;
  }
  if (!best) {
    // Release free buffers that are too small: they would accumulate while sizes grow.
    std::erase_if(allocations_,
                  [&](const auto& allocation) { return !allocation->in_use && allocation->size < bytes; });
    best = allocations_.emplace_back(std::make_shared<Allocation>(bytes));
  }
  best->in_use = true;
  auto* data = best->memory.get();
  const std::shared_ptr<const void> owner(data, [best](const void*) { best->in_use = false; });
  return {data, bytes, owner};
}

}  // namespace tutti::comm
