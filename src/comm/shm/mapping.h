#pragma once
// A memory mapping of a file, with huge pages if the kernel provides them.
//
// A process needs page tables for the memory that it touches: 4 KiB for each 2 MiB. If each of N ranks maps the memory
// of all ranks, the page tables grow with N * N. Huge pages need none of these tables, and they are allocated and
// mapped many times faster.
#include <cstddef>

#include "core/in_this_process.h"

namespace tutti::comm {

/// The size of a huge page, equal to the memory that one page table of 4 KiB maps. On processors with another size, no
/// huge pages are used.
inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

/// Requests huge pages for the first `bytes` of an empty memfd. Ranges without a huge page stay holes. Needs Linux 6.1;
/// works with any setting of the machine for huge pages of shared memory, except `deny`.
void try_huge_pages(int descriptor, std::size_t bytes);

class Mapping {
 public:
  enum class Pages {
    populate,   ///< the constructor maps all pages
    on_demand,  ///< the first access maps 16 pages or one huge page, so page tables grow with use
  };

  /// A forked child does not inherit the mapping, and the destructor does nothing there. Throws std::system_error.
  Mapping(int descriptor, std::size_t bytes, Pages pages);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }

 private:
  void* reserved_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  std::byte* data_ = nullptr;
  InThisProcess in_this_process_;
};

}  // namespace tutti::comm
