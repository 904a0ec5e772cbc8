#include "comm/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <memory>
#include <system_error>

namespace tutti::comm {
namespace {

// MADV_COLLAPSE, which C libraries name since 2023.
constexpr int madv_collapse = 25;

}  // namespace

void try_huge_pages(int descriptor, std::size_t bytes) {
  const std::size_t huge_bytes = bytes / huge_page_bytes * huge_page_bytes;
  if (huge_bytes == 0) return;
  // The kernel makes a huge page where it finds a small one at its end. The rest it fills with zeros at once, which is
  // several times faster than to come by small pages first.
  for (std::size_t end = huge_page_bytes; end <= huge_bytes; end += huge_page_bytes) {
    if (::posix_fallocate(descriptor, static_cast<off_t>(end) - 1, 1) != 0) return;
  }
  const Mapping mapping(descriptor, huge_bytes, Mapping::Pages::on_demand);
  ::madvise(mapping.data(), huge_bytes, madv_collapse);  // where it cannot, small pages will do
}

Mapping::Mapping(int descriptor, std::size_t bytes, Pages pages) {
  // Huge pages are mapped as such where they begin at multiples of their size, so there is room to choose. What holds
  // none stands close together: several share a page table.
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
  ::munmap(reserved_, reserved_bytes_);
}

}  // namespace tutti::comm
