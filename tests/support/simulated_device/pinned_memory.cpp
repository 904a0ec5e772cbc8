#include "support/simulated_device/pinned_memory.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {
namespace {

struct Blocks {
  std::mutex mutex;
  std::set<const void*> begins;
};

Blocks& blocks() {
  static auto* const all = new Blocks;
  return *all;
}

void free_pinned_block(void* begin) {
  {
    const std::lock_guard lock(blocks().mutex);
    blocks().begins.erase(begin);
  }
  std::free(begin);
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t size = (bytes + 127) / 64 * 64;
    void* const begin = std::aligned_alloc(64, size);
    // A host that reads before a copy has arrived sees NaN.
    if (settings().poison) std::memset(begin, 0xff, size);
    const std::lock_guard lock(blocks().mutex);
    blocks().begins.insert(begin);
    return {begin, begin, &free_pinned_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

c10::Allocator& pinned_allocator() {
  static auto* const allocator = new PinnedAllocator;
  return *allocator;
}

bool is_pinned(const void* begin) {
  const std::lock_guard lock(blocks().mutex);
  return blocks().begins.contains(begin);
}

}  // namespace tutti::test::simulated
