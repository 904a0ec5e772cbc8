#include "core/allocate_pages.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace tutti {

int allocate_pages(int descriptor, std::size_t begin, std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && begin + bytes > limit.rlim_cur) return EFBIG;
  // A signal may end a call, which then has allocated nothing. A short call ends before the next signal.
  constexpr std::size_t longest = std::size_t{16} << 20;
  for (const std::size_t end = begin + bytes; begin < end;) {
    const std::size_t length = std::min(longest, end - begin);
    const int error = ::posix_fallocate(descriptor, static_cast<off_t>(begin), static_cast<off_t>(length));
    if (error != 0 && error != EINTR) return error;
    if (error == 0) begin += length;
  }
  return 0;
}

}  // namespace tutti
