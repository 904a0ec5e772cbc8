#include "comm/shm/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "core/allocate_pages.h"

namespace tutti::comm {
namespace {

// MADV_COLLAPSE, which C libraries before 2023 do not define.
constexpr int madv_collapse = 25;

}  // namespace

void try_huge_pages(int descriptor, std::size_t bytes) {
  const std::size_t huge_bytes = bytes / huge_page_bytes * huge_page_bytes;
  if (huge_bytes == 0) return;
  // MADV_COLLAPSE creates a huge page where one small page is allocated, here the last one, and zeroes the rest at
  // once. That is several times faster than allocating all small pages first.
  for (std::size_t end = huge_page_bytes; end <= huge_bytes; end += huge_page_bytes) {
    if (allocate_pages(descriptor, end - 1, 1) != 0) return;
  }
  const Mapping mapping(descriptor, huge_bytes, Mapping::Pages::on_demand);
  ::madvise(mapping.data(), huge_bytes, madv_collapse);  // if it fails, small pages are used
}

Mapping::Mapping(int descriptor, std::size_t bytes, Pages pages) {
  // A huge page is mapped as such only at a multiple of its size, so the reserved range is larger by one alignment.
  // Mappings without huge pages are not aligned, so that several of them share a page table.
  const std::size_t alignment = bytes < huge_page_bytes ? 1 : huge_page_bytes;
  reserved_bytes_ = bytes + alignment - 1;
  reserved_ = ::mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mapping shared memory");
  void* begin = reserved_;
  std::size_t space = reserved_bytes_;
  std::align(alignment, bytes, begin, space);
  const int flags = MAP_SHARED | MAP_FIXED | (pages == Pages::populate ? MAP_POPULATE : 0);
  void* const memory = ::mmap(begin, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    ::munmap(reserved_, reserved_bytes_);
    throw std::system_error(error, std::generic_category(), "mapping shared memory");
  }
  data_ = static_cast<std::byte*>(memory);
  ::madvise(memory, bytes, MADV_DONTFORK);
}

Mapping::~Mapping() {
  if (in_this_process_) ::munmap(reserved_, reserved_bytes_);
}

}  // namespace tutti::comm
