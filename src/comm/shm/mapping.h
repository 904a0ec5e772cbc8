#pragma once
// A file's bytes in this process's memory, in a few huge pages where the kernel has some.
//
// Every process that maps memory needs page tables for what it touches: 4 KiB for each 2 MiB. Where each of N ranks
// maps the memory of all, that is N * N times one's share. Huge pages need none of these tables, and come and are
// mapped many times faster.
#include <cstddef>

namespace tutti::comm {

/// What a page table of 4 KiB reaches, and what a huge page holds in its place. (Where a processor's are of another
/// size, there are no huge pages here.)
inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

/// Asks for huge pages in the first `bytes` of an empty memfd; what gets none stays a hole. It does not matter what the
/// machine's settings prefer, other than `deny`. Linux has them for the asking since 6.1.
void try_huge_pages(int descriptor, std::size_t bytes);

class Mapping {
 public:
  enum class Pages {
    populate,   ///< all are mapped by the constructor
    on_demand,  ///< page tables grow with what is used: a first look maps 16 pages or a huge one
  };

  /// A forked child has no part in it. Throws std::system_error.
  Mapping(int descriptor, std::size_t bytes, Pages pages);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }

 private:
  void* reserved_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace tutti::comm
